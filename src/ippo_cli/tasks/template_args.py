"""The arguments and keys of messages that a chat template reads in addition to role, content and tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ippo_cli.tasks.tools.formats import chat_template_text
from ippo_cli.user_code.templates import find_template_variables

SET_ELSEWHERE = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
OPTIONAL_KEYS = ("name", "reasoning_content")
FUNCTIONS = {"raise_exception", "strftime_now", "range", "namespace", "tojson"}

REASONING_EFFORT = "reasoning_effort"  # a setting of chat requests, and a variable of some templates


def reads_reasoning_effort(tokenizer: Any) -> bool:
    """Whether the chat template names the variable `reasoning_effort`; False for a template that cannot be analysed."""
    return REASONING_EFFORT in (read_template_args(tokenizer) or ())


def read_template_args(tokenizer: Any) -> frozenset[str] | None:
    """The names of the arguments; None for a template that cannot be analysed."""
    names = find_template_variables(chat_template_text(tokenizer))
    if names is None:
        return None
    return frozenset(name for name in names - SET_ELSEWHERE - FUNCTIONS if not name.endswith("_token"))


def find_unread_keys(tokenizer: Any, messages: Iterable[Mapping[str, Any]]) -> set[str]:
    """The optional keys of messages that a chat template does not name; results of tools have names of their own."""
    used = {key for key in OPTIONAL_KEYS for part in messages if part.get(key) and part["role"] != "tool"}
    template = chat_template_text(tokenizer) if used else ""
    return {key for key in used if key not in template}
