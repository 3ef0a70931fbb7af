"""Prompts out of preference data: what was said before the answers that were compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, TypeGuard

from ippo_cli.types import Example

ANSWER_MARKERS = ("\n\nAssistant:", "<|assistant|>", "<|im_start|>assistant\n", "\nAssistant:")
"""What stands before an answer where a conversation is one text."""


def prompt_of(row: Mapping[str, Any]) -> Example | None:
    """A row with the field `prompt`, and `chosen` and `rejected` as the texts of the two last answers.

    Of conversations as lists of messages the prompt is the user's last message before they part, and
    `history` what was said before that, one line each. Of texts it is what both begin with, up to the last answer. A
    row that has a `prompt` keeps it, also as a list of messages. None where there is none.
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
    kept = {name: value for name, value in row.items() if name not in ("chosen", "rejected", "prompt")}
    return {
        **kept,
        "prompt": prompt,
        "history": history,
        "chosen": _answer_text(chosen),
        "rejected": _answer_text(rejected),
    }


def _is_conversation(value: Any) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    listed = isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0
    return listed and all(isinstance(one, Mapping) and "content" in one for one in value)


def _common_messages(
    chosen: Sequence[Mapping[str, Any]], rejected: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The messages that both begin with; of equal conversations all but the answer."""
    pairs = zip(chosen[:-1], rejected[:-1], strict=False)
    common: list[Mapping[str, Any]] = []
    for one, other in pairs:
        if one["content"] != other["content"]:
            break
        common.append(one)
    return common


def _split_last_user_message(messages: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """What was said before the last message of a user, and that message."""
    places = [place for place, one in enumerate(messages) if one.get("role", "user") in ("user", "human")]
    if not places:
        return "", ""
    before = [f"{one.get('role', 'user')}: {one['content']}" for one in messages[: places[-1]]]
    return "\n".join(before), str(messages[places[-1]]["content"])


def _common_text(chosen: str, rejected: str) -> str:
    """What both texts begin with, up to where the last answer begins."""
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False))
    common = "".join(one for one, _ in alike)
    ends = [common.rfind(mark) + len(mark) for mark in ANSWER_MARKERS if mark in common]
    return common[: max(ends)] if ends else ""


def _answer_text(value: Any) -> str:
    if _is_conversation(value):
        return str(value[-1]["content"])
    return "" if value is None else str(value)
