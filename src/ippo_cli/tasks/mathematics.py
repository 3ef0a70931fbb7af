"""Mathematics problems with worked solutions: the answer is the last `\\boxed{...}` of the solution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ippo_cli.types import Example

BOXES = ("\\boxed", "\\fbox")


def with_answer(row: Mapping[str, Any]) -> Example | None:
    """Return the row with the field `answer`: its own, or else the content of the last box of its `solution`.

    Returns None, which excludes the row, if there is neither.
    """
    answer = row.get("answer")
    if answer is None or not str(answer).strip():
        answer = last_box(str(row.get("solution") or ""))
    return None if answer is None else {**row, "answer": str(answer)}


def last_box(text: str) -> str | None:
    """Return the content of the last `\\boxed{...}`, with nested braces; of `\\boxed 7` the next character."""
    place, box = max((text.rfind(box), box) for box in BOXES)
    if place < 0:
        return None
    rest = text[place + len(box) :].lstrip()
    if not rest.startswith("{"):
        return rest[:1].strip() or None
    depth = 0
    for end, sign in enumerate(rest):
        depth += (sign == "{") - (sign == "}")
        if depth == 0:
            return rest[1:end].strip() or None
    return None
