"""Comparing two texts as mathematics: one call, made in a process that can be killed. Needs the extra `math`.

Some answers take computer algebra longer than anyone waits, such as a tower of powers. math-verify's own time limits
are off: they are alarms, which do not reach all of it.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import Any

from math_verify import parse, verify  # pyright: ignore[reportMissingImports]

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns once that its limits are off


def compare(reference: str, text: str) -> dict[str, float]:
    """Whether the text holds an answer (`found`), and whether that equals the reference (`right`)."""
    wanted, answer = _reference(reference), parse(text, parsing_timeout=0)
    right = bool(answer) and verify(wanted, answer, timeout_seconds=0)
    return {"found": float(bool(answer)), "right": float(right)}


@cache
def _reference(text: str) -> list[Any]:
    """A reference answer: what stands after a last `####`, in LaTeX with or without its `$`; raises for another."""
    answer = text.rsplit("####", 1)[-1].strip()
    marked = any(mark in answer for mark in ("$", r"\boxed", r"\(", r"\["))
    found = parse(answer if marked else f"${answer}$", parsing_timeout=0)  # as text, `2\sqrt{2}` is a 2
    if not answer or not found:
        raise ValueError(f"the reference answer {answer!r:.60} is no mathematics")
    return found
