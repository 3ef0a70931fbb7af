"""A filled plain template that records which parts come from fields.

Imports the standard library alone: child processes of rewards unpickle such texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class FilledText(str):
    """A filled template; `parts` holds (text, whether it is the value of a field)."""

    parts: list[tuple[str, bool]]

    def __new__(cls, parts: Sequence[tuple[str, bool]]) -> FilledText:
        filled = super().__new__(cls, "".join(text for text, _ in parts))
        filled.parts = _merge(parts)
        return filled

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.parts,)


def _merge(parts: Sequence[tuple[str, bool]]) -> list[tuple[str, bool]]:
    """Merge adjacent parts of one kind: two adjacent values may together spell a control token."""
    merged: list[tuple[str, bool]] = []
    for text, is_value in parts:
        if text and merged and merged[-1][1] == is_value:
            merged[-1] = (merged[-1][0] + text, is_value)
        elif text:
            merged.append((text, is_value))
    return merged
