"""Rows of a mini-batch are balanced over ranks, and none is lost."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from ippo_cli.engine import distributed
from ippo_cli.training.minibatches import balance_across_ranks, count_row_tokens, iterate_minibatches, partition
from ippo_cli.types import DetachedTurn, Minibatch, Rollout, StepContext, Targets


def loads(costs, parts):
    sums = [0.0] * parts
    for cost, part in zip(costs, partition(costs, parts), strict=True):
        sums[part] += cost
    return sums


def test_equal_items_are_split_equally():
    assert loads([7] * 128, 64) == [14.0] * 64


def test_classic_example_is_balanced():
    assert sorted(loads([8, 7, 6, 5, 4], 2)) == [14.0, 16.0]  # differencing has difference 2; the optimum is 15 and 15


@pytest.mark.parametrize("parts", [2, 8, 64, 512])
def test_largest_part_is_near_optimum(parts):
    luck = random.Random(parts)
    for _ in range(3):
        costs = [round(luck.lognormvariate(5.5, 0.8)) + 64 for _ in range(8 * parts)]
        sums = loads(costs, parts)
        assert sum(sums) == sum(costs)
        assert max(sums) <= 1.03 * max(max(costs), sum(costs) / parts)


def test_fewer_items_than_parts():
    found = partition([5, 3, 3], 8)
    assert len(set(found)) == 3
    assert partition([], 4) == []
    assert partition([1, 2], 1) == [0, 0]


def rows(prompts, lengths):
    """Rows whose response ids, log-probabilities and advantages identify the row."""
    count, wide, long = len(prompts), max(prompts, default=1), max(lengths, default=1)
    column = torch.arange(long)[None] < torch.tensor(lengths)[:, None]
    named = torch.tensor(prompts).float()[:, None].expand(count, long).clone()
    rollout = Rollout(
        prompt_ids=torch.ones(count, wide, dtype=torch.long),
        prompt_mask=torch.arange(wide)[None] >= wide - torch.tensor(prompts, dtype=torch.long)[:, None],
        response_ids=named.long() * column,
        response_mask=column,
        turn=torch.where(column, 0, -1),
        length=torch.tensor(lengths, dtype=torch.long),
        logprobs=named * column,
        behavior_logprobs=named * column,
        finished=torch.ones(count, dtype=torch.bool),
        texts=[str(prompt) for prompt in prompts],
    )
    numbers = named * column
    targets = Targets(
        rewards=numbers,
        values=numbers,
        final_values=torch.tensor(prompts).float(),
        ref_logprobs=numbers,
        advantages=numbers,
        returns=numbers,
        loss_mask=column,
        value_mask=column,
        behavior_weights=numbers,
        sample_counts=torch.ones(count, dtype=torch.long),
        positive=torch.zeros(count, dtype=torch.bool),
    )
    return rollout, targets


def test_each_row_moves_to_one_rank(monkeypatch):
    held = [
        (*rows(prompts, lengths), torch.tensor([prompt % 2 for prompt in prompts], dtype=torch.long))
        for prompts, lengths in (([1, 2, 3, 4], [9, 2, 3, 4]), ([], []), ([5, 6], [30, 1]))
    ]
    monkeypatch.setattr(distributed, "world_size", lambda: len(held))
    monkeypatch.setattr(distributed, "gather_objects", lambda own: held)
    seen, work = [], []
    for rank, own in enumerate(held):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        batch = Minibatch(
            rollout=own[0],
            targets=own[1],
            agent=own[2],
            num_tokens=49,
            num_sequences=6,
            num_values=49,
            num_value_sequences=6,
        )
        share = balance_across_ranks(batch)
        rollout, targets = share.rollout, share.targets
        assert share.num_tokens == 49
        work.append(int(count_row_tokens(rollout).sum()))
        for row, text in enumerate(rollout.texts):
            name, length = int(text), int(rollout.length[row])
            seen.append((name, length))
            assert int(share.agent[row]) == name % 2
            assert int(rollout.prompt_mask[row].sum()) == name
            assert bool(rollout.prompt_mask[row, -1])  # left-padded
            assert rollout.response_ids[row, :length].tolist() == [name] * length
            assert targets.advantages[row].sum() == name * length
            assert targets.final_values[row] == name
    assert sorted(seen) == [(1, 9), (2, 2), (3, 3), (4, 4), (5, 30), (6, 1)]
    assert max(work) == 35  # the longest row alone


def test_counts_of_a_mini_batch_and_its_rows_by_epoch():
    rollout, targets = rows([1, 2, 3, 4, 5, 6], [4, 2, 3, 1, 1, 1])
    targets = replace(targets, value_mask=targets.value_mask.clone())
    targets.value_mask[0] = False
    targets.positive[1] = True
    context = StepContext(seed=0, iteration=0, num_iterations=1)
    (batch,) = iterate_minibatches(rollout, targets, context, mini_batch_size=6, epoch=0)
    assert (batch.num_tokens, batch.num_sequences, batch.num_positive_tokens) == (12, 6, 2)
    assert (batch.num_values, batch.num_value_sequences) == (8, 5)
    first, second, again = (
        [batch.rollout.texts for batch in iterate_minibatches(rollout, targets, context, mini_batch_size=1, epoch=each)]
        for each in (0, 1, 0)
    )
    assert first == again != second


def test_row_cost_counts_input_tokens():
    rollout, _ = rows([3, 2], [4, 5])
    rollout.detached[1].append(DetachedTurn(column=2, prompt=[1] * 10))
    assert count_row_tokens(rollout).tolist() == [7, 17]
