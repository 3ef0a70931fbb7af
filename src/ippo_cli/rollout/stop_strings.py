"""The text of the tokens of responses, and stop strings in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def length_to_stop_string(ids: Sequence[int], stops: Sequence[str], tokenizer: Any) -> int:
    """The number of tokens up to the first that completes a stop string: engines may generate some more, where the
    text of a token depends on the next one.
    """
    if not stops or not ids or not any(stop in decode_tokens(ids[:-1], tokenizer, with_special=True) for stop in stops):
        return len(ids)
    ends = range(1, len(ids) + 1)
    return next((end for end in ends if contains_stop_string(ids[:end], stops, tokenizer)), len(ids))


def contains_stop_string(ids: Sequence[int], stops: Sequence[str], tokenizer: Any) -> bool:
    """Whether the last tokens contain a stop string; special tokens count as text."""
    if not stops:
        return False
    tail = 8 + max(len(stop.encode()) for stop in stops)
    text = decode_tokens(ids[-tail:], tokenizer, with_special=True)
    return any(stop in text for stop in stops)


def decode_tokens(ids: Sequence[int], tokenizer: Any, *, with_special: bool) -> str:
    """The text of tokens without clean-up; `with_special`: whether special tokens are part of it."""
    return str(
        tokenizer.decode(
            ids,
            skip_special_tokens=not with_special,
            clean_up_tokenization_spaces=False,
            spaces_between_special_tokens=False,
        )
    )
