"""The arguments that a chat template reads in addition to messages and tools."""

from __future__ import annotations

from typing import Any

from ippo_cli.tasks.tools.formats import chat_template_text
from ippo_cli.user_code.templates import find_template_variables

SET_ELSEWHERE = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
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
