"""Stop strings in the tokens of responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def length_to_stop_string(ids: Sequence[int], stops: Sequence[str], tokenizer: Any) -> int:
    """The number of tokens up to the first that completes a stop string: engines may generate some more, where the
    text of a token depends on the next one.
    """
    if not stops or not ids or not any(stop in _decode_all(ids[:-1], tokenizer) for stop in stops):
        return len(ids)
    ends = range(1, len(ids) + 1)
    return next((end for end in ends if contains_stop_string(ids[:end], stops, tokenizer)), len(ids))


def contains_stop_string(ids: Sequence[int], stops: Sequence[str], tokenizer: Any) -> bool:
    """Whether the last tokens contain a stop string; special tokens count as text."""
    if not stops:
        return False
    tail = 8 + max(len(stop.encode()) for stop in stops)
    text = _decode_all(ids[-tail:], tokenizer)
    return any(stop in text for stop in stops)


def _decode_all(ids: Sequence[int], tokenizer: Any) -> str:
    """The text of tokens; special tokens are part of it."""
    return str(
        tokenizer.decode(
            ids,
            skip_special_tokens=False,
            clean_up_tokenization_spaces=False,
            spaces_between_special_tokens=False,
        )
    )
