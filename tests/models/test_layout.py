"""Rows as models read them, and the one place where state and token are shifted against each other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import everything, rollout

from ippo_cli.models.layout import build_sequences, token_budget_batches


def test_a_hand_worked_row_stands_without_padding_and_each_state_is_the_column_before_its_token() -> None:
    made = rollout([[5, 6], [4, 5, 6]], [[7, 8, 2], [9, 2]], [[1, 1, 1], [1, 1]])
    sequences = build_sequences(made, everything(made), packed=False)
    assert sequences.input_ids.tolist() == [[5, 6, 7, 8, 2], [4, 5, 6, 9, 2]]
    # V(5 6) speaks about 7, V(5 6 7) about 8, V(5 6 7 8) about 2, V(5 6 7 8 2) about what comes after.
    assert sequences.state[0].tolist() == [1, 2, 3, 4]
    assert sequences.state[1].tolist() == [
        5 + 2,
        5 + 3,
        5 + 4,
        5 + 4,
    ]  # past the end of a shorter row: kept inside, and never used
    assert sequences.lengths.tolist() == [3, 2]
    assert sequences.response_ids.tolist() == [[7, 8, 2], [9, 2, 0]]
    assert sequences.response_mask.tolist() == [[True] * 3, [True, True, False]]


def test_the_state_before_a_token_ends_with_the_token_before_it() -> None:
    made = rollout([[5, 6], [4]], [[7, 8, 2], [9, 2]], [[1, 1, 1], [1, 1]])
    sequences = build_sequences(made, everything(made), packed=False)
    read = sequences.input_ids.flatten()[sequences.state]
    assert read[0].tolist() == [6, 7, 8, 2]
    assert read[1, :3].tolist() == [4, 9, 2]
    after = read.gather(1, sequences.lengths[:, None])[:, 0]
    assert after.tolist() == [2, 2], "the state after the last token has read that token"


def test_observations_between_own_tokens_are_read_and_not_answered_for() -> None:
    made = rollout([[5]], [[7, 11, 12, 8]], [[1, 0, 0, 1]])
    sequences = build_sequences(made, everything(made), packed=False)
    assert sequences.input_ids.tolist() == [[5, 7, 11, 12, 8]]
    assert sequences.response_mask.tolist() == [[True, False, False, True]]
    assert sequences.input_ids.flatten()[sequences.state][0, :4].tolist() == [5, 7, 11, 12]


def test_tokens_after_the_last_own_one_are_not_read() -> None:
    made = rollout([[5, 6]], [[7, 8, 9]], [[1, 1, 0]])
    sequences = build_sequences(made, everything(made), packed=False)
    assert sequences.input_ids.tolist() == [[5, 6, 7, 8]]
    assert sequences.response_ids.tolist() == [[7, 8]]


def test_a_row_that_said_nothing_keeps_its_prompt() -> None:
    made = rollout([[5, 6]], [[]], [[]])
    sequences = build_sequences(made, everything(made), packed=False)
    assert sequences.input_ids.tolist() == [[5, 6]]
    assert sequences.lengths.tolist() == [0]
    assert sequences.state[0, 0] == 1


def test_rows_may_be_chosen_repeated_and_reordered() -> None:
    made = rollout([[5, 6], [4], [1, 2, 3]], [[7, 8, 2], [9], [3, 3, 3, 3]], [[1, 1, 1], [1], [1, 1, 1, 1]])
    sequences = build_sequences(made, torch.tensor([1, 0, 1]), packed=False)
    assert sequences.input_ids.tolist() == [[4, 9, 0, 0, 0], [5, 6, 7, 8, 2], [4, 9, 0, 0, 0]]
    assert sequences.response_ids.shape == (3, 3)


tokens = st.lists(st.integers(3, 60), max_size=6)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(3, 60), min_size=1, max_size=5), tokens), min_size=1, max_size=5))
def test_what_stands_in_the_padding_never_matters(rows: list[tuple[list[int], list[int]]]) -> None:
    prompts, responses = [list(part) for part in zip(*rows, strict=True)]
    masks = [[1] * len(response) for response in responses]
    made = [rollout(prompts, responses, masks, pad=pad) for pad in (0, 7, -100)]
    found = [build_sequences(one, everything(one), packed=False) for one in made]
    for other in found[1:]:
        assert torch.equal(found[0].input_ids, other.input_ids)
        assert torch.equal(found[0].state, other.state)
    width = found[0].input_ids.shape[1]
    for row, (prompt, response) in enumerate(rows):
        whole = prompt + response
        assert found[0].input_ids[row, : len(whole)].tolist() == whole
        assert not found[0].input_ids[row, len(whole) :].any()
        assert found[0].state[row, : len(response) + 1].tolist() == list(
            range(row * width + len(prompt) - 1, row * width + len(whole))
        )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=40), st.integers(1, 200))
def test_batches_hold_every_row_once_and_stay_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = token_budget_batches(torch.tensor(lengths), budget, packed=False)
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(len(lengths)))
    for batch in batches:
        sizes = [lengths[row] for row in batch.tolist()]
        assert len(sizes) == 1 or max(sizes) * len(sizes) <= budget
    assert all(batch.dtype == torch.long for batch in batches)


def test_batches_are_not_smaller_than_they_need_be() -> None:
    lengths = torch.tensor([2, 9, 2, 8, 2])
    assert [batch.tolist() for batch in token_budget_batches(lengths, 18, packed=False)] == [[1, 3], [0, 2, 4]]
    assert [batch.tolist() for batch in token_budget_batches(lengths, 19, packed=True)] == [[1, 3, 0], [2, 4]]
    assert len(token_budget_batches(torch.tensor([5] * 8), 20, packed=False)) == 2
    assert len(token_budget_batches(torch.tensor([30, 1]), 20, packed=False)) == 2, "a row above the budget goes alone"


def test_there_is_no_batch_without_a_row() -> None:
    assert token_budget_batches(torch.zeros(0, dtype=torch.long), 10, packed=False) == []


@pytest.mark.parametrize("budget", [1, 7, 1000])
def test_the_same_lengths_give_the_same_batches(budget: int) -> None:
    lengths = torch.tensor([3, 1, 3, 2, 3])
    first, again = (
        token_budget_batches(lengths, budget, packed=False),
        token_budget_batches(lengths, budget, packed=False),
    )
    assert [batch.tolist() for batch in first] == [batch.tolist() for batch in again]
