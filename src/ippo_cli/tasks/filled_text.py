"""Text of a plain template that knows which of its parts come from fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class FilledText(str):
    """A filled template: its parts, each with whether it is the value of a field."""

    parts: list[tuple[str, bool]]

    def __new__(cls, parts: Sequence[tuple[str, bool]]) -> FilledText:
        made = super().__new__(cls, "".join(text for text, _ in parts))
        made.parts = _merge(parts)
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.parts,)


def _merge(parts: Sequence[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Parts of which no two of one kind follow each other: two values may spell together what neither does."""
    merged: list[tuple[str, bool]] = []
    for text, is_value in parts:
        if text and merged and merged[-1][1] == is_value:
            merged[-1] = (merged[-1][0] + text, is_value)
        elif text:
            merged.append((text, is_value))
    return merged
