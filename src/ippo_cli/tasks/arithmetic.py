"""Sums and differences of two small numbers: the first task for a small pretrained model."""

from __future__ import annotations

import random

from ippo_cli.types import Example

LARGEST = 50
TRAIN, HELD_OUT = 1000, 100


def train() -> list[Example]:
    """1000 pairs of numbers."""
    return _examples()[HELD_OUT:]


def held_out() -> list[Example]:
    """100 pairs of numbers, none of which is a training example."""
    return _examples()[:HELD_OUT]


def _examples() -> list[Example]:
    """The same for every run, whatever its seed: scores of runs can be compared."""
    pairs = [(a, b) for a in range(LARGEST + 1) for b in range(LARGEST + 1)]
    return [_example(a, b) for a, b in random.Random("arithmetic").sample(pairs, TRAIN + HELD_OUT)]


def _example(a: int, b: int) -> Example:
    larger, smaller = max(a, b), min(a, b)
    return {"a": a, "b": b, "sum": a + b, "larger": larger, "smaller": smaller, "difference": larger - smaller}
