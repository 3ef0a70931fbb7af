"""Arithmetic task: sums and differences of two small numbers, for small pretrained models."""

from __future__ import annotations

import random

from ippo_cli.types import Example

LARGEST = 50
TRAIN, HELD_OUT = 1000, 100


def train() -> list[Example]:
    """Return 1000 pairs of numbers."""
    return _examples()[HELD_OUT:]


def held_out() -> list[Example]:
    """Return 100 pairs of numbers that are not among the training examples."""
    return _examples()[:HELD_OUT]


def _examples() -> list[Example]:
    """The examples do not depend on the run's seed, so that scores of runs are comparable."""
    pairs = [(a, b) for a in range(LARGEST + 1) for b in range(LARGEST + 1)]
    return [_example(a, b) for a, b in random.Random("arithmetic").sample(pairs, TRAIN + HELD_OUT)]


def _example(a: int, b: int) -> Example:
    larger, smaller = max(a, b), min(a, b)
    return {"a": a, "b": b, "sum": a + b, "larger": larger, "smaller": smaller, "difference": larger - smaller}
