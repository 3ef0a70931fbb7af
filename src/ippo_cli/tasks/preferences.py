"""Extract prompts from preference data: the text before the chosen and rejected answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, TypeGuard

from ippo_cli.types import Example

ANSWER_MARKERS = ("\n\nAssistant:", "<|assistant|>", "<|im_start|>assistant\n", "\nAssistant:")
"""Markers before an answer in a conversation that is one text."""


def prompt_of(row: Mapping[str, Any]) -> Example | None:
    """Return the row with `prompt`, `history`, and the last answers as `chosen` and `rejected`; None without a prompt.

    For lists of messages, the prompt is the last user message of the common beginning, and `history` holds the messages
    before it, one line each. For texts, the prompt is their common beginning up to the last answer. An existing
    `prompt`, a text or a list of messages, has priority.
    """
    chosen, rejected = row.get("chosen"), row.get("rejected")
    if (own_prompt := row.get("prompt")) is not None:
        history, prompt = (
            _split_last_user_message(own_prompt) if _is_conversation(own_prompt) else ("", str(own_prompt))
        )
    elif _is_conversation(chosen) and _is_conversation(rejected):
        history, prompt = _split_last_user_message(_common_messages(chosen, rejected))
    elif isinstance(chosen, str) and isinstance(rejected, str):
        history, prompt = "", _common_text(chosen, rejected)
        chosen, rejected = chosen.removeprefix(prompt), rejected.removeprefix(prompt)
    else:
        return None
    if not prompt.strip():
        return None
    other_fields = {name: value for name, value in row.items() if name not in ("chosen", "rejected", "prompt")}
    return {
        **other_fields,
        "prompt": prompt,
        "history": history,
        "chosen": _answer_text(chosen),
        "rejected": _answer_text(rejected),
    }


def _is_conversation(value: Any) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    listed = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    return listed and all(isinstance(message, Mapping) and "content" in message for message in value)


def _common_messages(
    chosen: Sequence[Mapping[str, Any]], rejected: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the common first messages, at most all but the last one."""
    pairs = zip(chosen[:-1], rejected[:-1], strict=False)
    common: list[Mapping[str, Any]] = []
    for chosen_message, rejected_message in pairs:
        if chosen_message["content"] != rejected_message["content"]:
            break
        common.append(chosen_message)
    return common


def _split_last_user_message(messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the text before the last user message, and that message."""
    places = [place for place, message in enumerate(messages) if message.get("role", "user") in ("user", "human")]
    if not places:
        return "", ""
    before = [f"{message.get('role', 'user')}: {message['content']}" for message in messages[: places[-1]]]
    return "\n".join(before), str(messages[places[-1]]["content"])


def _common_text(chosen: str, rejected: str) -> str:
    """Return the common beginning of both texts, up to the start of the last answer."""
    equal_pairs = takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False))
    common = "".join(letter for letter, _ in equal_pairs)
    ends = [common.rfind(mark) + len(mark) for mark in ANSWER_MARKERS if mark in common]
    return common[: max(ends)] if ends else ""


def _answer_text(value: Any) -> str:
    if _is_conversation(value):
        return str(value[-1]["content"])
    return "" if value is None else str(value)
