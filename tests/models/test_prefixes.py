"""Grouping of sequences by shared prefix."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ippo_cli.models import prefixes
from ippo_cli.models.prefixes import PrefixGroup, group_by_shared_prefix

SHORT = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9).map(np.array), max_size=9)


def count_saved_tokens(found: tuple[PrefixGroup, ...]) -> int:
    return sum(family.prefix * (len(family.members) - 1) for family in found)


@settings(max_examples=300, deadline=None)
@given(SHORT, st.sampled_from([0.0, 0.5]), st.integers(1, 4))
def test_groups_share_prefix_and_are_disjoint(sequences: list[np.ndarray], least_share: float, shortest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "MIN_PREFIX_TOKENS", shortest)
        found = group_by_shared_prefix(sequences, least_share)
    members = [number for family in found for number in family.members]
    assert len(members) == len(set(members))
    for family in found:
        own = [sequences[number] for number in family.members]
        assert len(own) >= 2
        assert family.prefix >= shortest
        assert family.prefix * (len(own) - 1) >= least_share * sum(map(len, own))
        assert all(len(each) > family.prefix for each in own)
        assert len({each[: family.prefix].tobytes() for each in own}) == 1


@settings(max_examples=300, deadline=None)
@given(SHORT, st.integers(1, 4))
def test_grouping_optimal_for_single_prefix(sequences: list[np.ndarray], shortest: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prefixes, "MIN_PREFIX_TOKENS", shortest)
        found = group_by_shared_prefix(sequences, 0.0)
    best = 0
    for sequence in sequences:
        for size in range(shortest, len(sequence)):
            alike = sum(len(each) > size and (each[:size] == sequence[:size]).all() for each in sequences)
            best = max(best, size * (alike - 1))
    assert count_saved_tokens(found) >= best


def test_groups_by_prompt_and_system_message() -> None:
    rng = np.random.default_rng(0)
    system, prompts = rng.integers(0, 90, 20), [rng.integers(0, 90, 30) for _ in range(3)]
    answers = [np.concatenate([system, prompts[n % 3], rng.integers(0, 90, 10 + n)]) for n in range(6)]
    assert {(tuple(sorted(each.members)), each.prefix) for each in group_by_shared_prefix(answers, 1 / 16)} == {
        ((0, 3), 50),
        ((1, 4), 50),
        ((2, 5), 50),
    }
    (family,) = group_by_shared_prefix(answers[:3], 1 / 16)
    assert (sorted(family.members), family.prefix) == ([0, 1, 2], 20)
    assert group_by_shared_prefix(answers[:3], 1 / 4) == ()  # 2 times 20 of 183
    pair = [np.concatenate([system, rng.integers(0, 90, 290)]) for _ in range(8)]
    assert group_by_shared_prefix(pair[:2], 1 / 16) == ()  # 20 of 620
    (family,) = group_by_shared_prefix(pair, 1 / 19)  # 140 of 2480
    assert sorted(family.members) == list(range(8))
    assert group_by_shared_prefix([], 1 / 16) == group_by_shared_prefix(answers[:1], 1 / 16) == ()
