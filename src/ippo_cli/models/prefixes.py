"""Which sequences begin alike, so that what they have in common is read once.

As in Liu et al. 2025 (Prefix Grouper, arXiv 2506.05433), but for any prefixes, not for prompts alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MIN_PREFIX_TOKENS = 16
"""Tokens in common from which on it pays to read them once: what goes on from them attends through a mask."""

MIN_SAVED_FRACTION = {"cpu": 1 / 16, "cuda": 1 / 4}
"""And the share of all tokens that need not be read then: attention through a mask computes what a causal one leaves
out, and two that share little are a group more. Measured on a CPU; on a GPU, where attention without a mask is faster
still against everything else, an estimate."""


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Sequences whose first `prefix` tokens are the same; each of them has more."""

    members: tuple[int, ...]
    prefix: int


@dataclass(frozen=True, slots=True)
class _Branch:
    """Neighbours in sorted order, and how most tokens of theirs are read once."""

    members: tuple[int, ...]
    shortest: int  # of their lengths
    tokens: int  # of all together
    saved: int
    groups: tuple[PrefixGroup, ...]

    def merge_next(self, other: _Branch, common: int, min_saved_fraction: float) -> _Branch:
        """Both, which have `common` first tokens in common: as one family, or as those that they were."""
        members = self.members + other.members
        shortest, tokens = min(self.shortest, other.shortest), self.tokens + other.tokens
        prefix = min(common, shortest - 1)
        saved = prefix * (len(members) - 1)
        worth = prefix >= MIN_PREFIX_TOKENS and saved >= min_saved_fraction * tokens
        if worth and saved > self.saved + other.saved:
            return _Branch(members, shortest, tokens, saved, (PrefixGroup(members, prefix),))
        return _Branch(members, shortest, tokens, self.saved + other.saved, self.groups + other.groups)


def group_by_shared_prefix(sequences: Sequence[np.ndarray], min_saved_fraction: float) -> tuple[PrefixGroup, ...]:
    """Of sequences of ids `[n]`: those that begin alike, so that few tokens are read; no sequence is in two.

    A prefix has at least `SHORTEST` tokens, and `min_saved_fraction` of a family's tokens or more are not read again. Prefixes
    of prefixes are not looked for.
    """
    order = sorted(range(len(sequences)), key=lambda number: sequences[number].astype(">i8").tobytes())
    stack: list[tuple[int, _Branch]] = []  # what each has in common with the one before it

    def join_last() -> None:
        common, last = stack.pop()
        before, branch = stack.pop()
        stack.append((before, branch.merge_next(last, common, min_saved_fraction)))

    for place, number in enumerate(order):
        common = _common_prefix_length(sequences[order[place - 1]], sequences[number]) if place else 0
        while len(stack) > 1 and stack[-1][0] > common:
            join_last()
        length = len(sequences[number])
        stack.append((common, _Branch((number,), length, length, 0, ())))
    while len(stack) > 1:
        join_last()
    return stack[0][1].groups if stack else ()


def _common_prefix_length(one: np.ndarray, other: np.ndarray) -> int:
    size = min(len(one), len(other))
    unlike = np.flatnonzero(one[:size] != other[:size])
    return int(unlike[0]) if len(unlike) else size
