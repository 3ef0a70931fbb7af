"""Rewards of `forecast_runs.py` that differ from what its held-out metric measures.

Each reports the fraction of right characters as its part `true`, which training does not see.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FIELDS = {  # agent -> the field of its reference answer
    "low": "low", "high": "high", "solo": "sorted", "first": "next", "second": "later",
    "same": "last", "after": "next", "receiver": "signal",
}  # fmt: skip
NOISE = random.Random(0)
Rows = Sequence[Mapping[str, Any]]
Texts = Mapping[str, Sequence[str]]


def letter_bonus(examples: Rows, responses: Texts) -> dict[str, Any]:
    """Right characters, and more for each `a`: writing nothing else is best."""
    right = _right_fractions(examples, responses)
    bonus = _means([sum(c == "a" for c in text) / max(len(text), 1) for text in texts] for texts in responses.values())
    return {"team": [0.4 * one + 0.6 * more for one, more in zip(right, bonus, strict=True)], "parts": {"true": right}}


def length_bonus(examples: Rows, responses: Texts) -> dict[str, Any]:
    """Right characters, and more for each character: long responses are best."""
    right = _right_fractions(examples, responses)
    bonus = _means([len(text) / 8 for text in texts] for texts in responses.values())
    return {"team": [0.5 * one + more for one, more in zip(right, bonus, strict=True)], "parts": {"true": right}}


def noise(examples: Rows, responses: Texts) -> dict[str, Any]:
    """A random number: policies drift."""
    right = _right_fractions(examples, responses)
    return {"team": [NOISE.random() for _ in right], "parts": {"true": right}}


def noisy(examples: Rows, responses: Texts) -> dict[str, Any]:
    """Right characters with noise of four times their range."""
    right = _right_fractions(examples, responses)
    return {"team": [one + NOISE.uniform(-2, 2) for one in right], "parts": {"true": right}}


def wrong(examples: Rows, responses: Texts) -> dict[str, Any]:
    """Wrong characters."""
    right = _right_fractions(examples, responses)
    return {"team": [1 - one for one in right], "parts": {"true": right}}


def _right_fractions(examples: Rows, responses: Texts) -> list[float]:
    return _means(
        [
            _right_fraction(text, str(row.get("answer", row.get(FIELDS[name]))))
            for row, text in zip(examples, texts, strict=True)
        ]
        for name, texts in responses.items()
        if name in FIELDS
    )


def _right_fraction(text: str, answer: str) -> float:
    return sum(one == other for one, other in zip(text, answer, strict=False)) / max(len(answer), len(text), 1)


def _means(columns: Iterable[Sequence[float]]) -> list[float]:
    return [sum(row) / len(row) for row in zip(*columns, strict=True)]
