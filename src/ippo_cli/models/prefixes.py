"""Groups sequences by shared prefix, so that the prefix is computed once.

As in Liu et al. 2025 (Prefix Grouper, arXiv 2506.05433), but for any prefixes, not only prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MIN_PREFIX_TOKENS = 16
"""Minimum length of a shared prefix: suffixes attend through a mask, which must pay off."""

MIN_SAVED_FRACTION = {"cpu": 1 / 16, "cuda": 1 / 4}
"""Minimum fraction of tokens saved: attention with a mask also computes what causal attention skips, and small groups
add overhead. Measured on a CPU; an estimate for a GPU, where attention without a mask is relatively faster.
"""


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Sequences with the same first `prefix` tokens; each of them is longer."""

    members: tuple[int, ...]
    prefix: int


@dataclass(frozen=True, slots=True)
class _Branch:
    """Adjacent sequences in sorted order, and the grouping that saves most tokens."""

    members: tuple[int, ...]
    shortest: int  # of their lengths
    tokens: int  # of all together
    saved_tokens: int
    groups: tuple[PrefixGroup, ...]

    def merge_next(self, other: _Branch, common: int, min_saved_fraction: float) -> _Branch:
        """Merge two branches with `common` equal first tokens: as one group, or keep their groups."""
        members = self.members + other.members
        shortest, tokens = min(self.shortest, other.shortest), self.tokens + other.tokens
        prefix = min(common, shortest - 1)
        saved = prefix * (len(members) - 1)
        worth = prefix >= MIN_PREFIX_TOKENS and saved >= min_saved_fraction * tokens
        if worth and saved > self.saved_tokens + other.saved_tokens:
            return _Branch(members, shortest, tokens, saved, (PrefixGroup(members, prefix),))
        return _Branch(members, shortest, tokens, self.saved_tokens + other.saved_tokens, self.groups + other.groups)


def group_by_shared_prefix(sequences: Sequence[np.ndarray], min_saved_fraction: float) -> tuple[PrefixGroup, ...]:
    """Group sequences of ids `[n]` by shared prefix to minimise tokens read; groups are disjoint.

    A prefix has at least `MIN_PREFIX_TOKENS` tokens, and sharing saves at least `min_saved_fraction` of a group's
    tokens. Nested prefixes are not used.
    """
    order = sorted(range(len(sequences)), key=lambda number: sequences[number].astype(">i8").tobytes())
    stack: list[tuple[int, _Branch]] = []  # length that each has in common with the previous one

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
    different = np.flatnonzero(one[:size] != other[:size])
    return int(different[0]) if len(different) else size
