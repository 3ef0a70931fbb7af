"""Optimizer steps of an update: rows of the agents, mini-batches balanced over ranks, and their micro-batches."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ippo_cli.agents.learner import Learner, MicroBatch
from ippo_cli.engine import distributed
from ippo_cli.types import (
    CriticView,
    Minibatch,
    Rollout,
    StepContext,
    Targets,
    concatenate_rows,
    move_carrier,
    take_rows,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerStep:
    """The micro-batches of one optimizer step on this rank, and its position in the update."""

    epoch: int
    is_first: bool  # of the update
    num_tokens: int  # over all ranks, where loss_mask is set
    batch: Minibatch  # its rows on this rank
    micro_batches: Iterator[MicroBatch]  # equally many on every rank; readable once


def iterate_steps(
    learner: Learner,
    rollouts: Mapping[str, Rollout],
    targets: Mapping[str, Targets],
    context: StepContext,
    views: Mapping[str, CriticView] | None = None,
) -> Iterator[OptimizerStep]:
    """Iterate over a learner's optimizer steps of one iteration, over all its epochs.

    Collective: each mini-batch is built, and balanced over ranks, when its step is requested.
    `views`: by agent, the input of a centralised critic in place of the rows.
    """
    rollout, own_targets = concatenate_agents(learner, rollouts, targets, views)
    is_first = True
    for epoch in range(learner.ppo_epochs):
        for batch in iterate_minibatches(
            rollout,
            own_targets,
            context,
            mini_batch_size=learner.mini_batch_size,
            epoch=epoch,
            agents=len(learner.agent_names) + len(learner.shared_authors),
        ):
            yield OptimizerStep(
                epoch=epoch,
                is_first=is_first,
                num_tokens=batch.num_tokens,
                batch=batch,
                micro_batches=learner.iterate_micro_batches(batch),
            )
            is_first = False


def concatenate_agents(
    learner: Learner,
    rollouts: Mapping[str, Rollout],
    targets: Mapping[str, Targets],
    views: Mapping[str, CriticView] | None = None,
) -> tuple[Rollout, Targets]:
    """The rows and targets of all agents and authors of a learner, in order: of views for a centralised critic."""
    names = (*learner.agent_names, *learner.shared_authors)
    if learner.layout is not None:
        assert views is not None
        rollouts = {name: views[name].rollout for name in names}
        targets = {name: views[name].scatter_targets(targets[name]) for name in names}
    return concatenate_rows([rollouts[name] for name in names]), concatenate_rows([targets[name] for name in names])


def iterate_minibatches(
    rollout: Rollout, targets: Targets, context: StepContext, *, mini_batch_size: int, epoch: int, agents: int = 1
) -> Iterator[Minibatch]:
    """The epoch's mini-batches, shuffled over the global buffer by (seed, iteration, epoch). Collective.

    Each rank has at least one row, and equally many rows of each of the concatenated `agents`; numbers of rows may
    differ between ranks. The global buffer is ordered by agent, then by rank. `balance_across_ranks` redistributes
    each mini-batch over ranks. A mini-batch without a trainable token on any rank is skipped: by momentum, its step
    would still change the weights.
    """
    counts_by_agent = targets.sample_counts.view(agents, -1).T  # [rows of an agent here, agents]
    agent = torch.arange(agents, device=counts_by_agent.device).repeat_interleave(len(counts_by_agent))
    seed = (context.seed * 1_000_003 + context.iteration) * 101 + epoch
    drawn = _draw_rows(counts_by_agent, mini_batch_size, seed)
    for rows, counts in zip(drawn, _count_targets(targets, drawn), strict=True):
        if counts[0] == 0:
            continue
        batch = _build_minibatch(rollout, targets, agent, rows, counts)
        if distributed.world_size() > 1:
            batch = balance_across_ranks(batch)
        if not len(batch.agent):  # a rank without rows takes part with a masked one
            batch = _build_minibatch(rollout, targets, agent, rows.new_zeros(1), counts).mask_all()
        yield batch


def _build_minibatch(
    rollout: Rollout, targets: Targets, agent: Tensor, rows: Tensor, counts: Sequence[int]
) -> Minibatch:
    """Some of the rows, with the whole mini-batch's counts, see `_count_targets`."""
    tokens, sequences, values, positive_tokens, value_sequences = counts
    return Minibatch(
        rollout=Rollout(**take_rows(rollout, rows)),
        targets=Targets(**take_rows(targets, rows)),
        num_tokens=tokens,
        num_sequences=sequences,
        num_values=values,
        num_positive_tokens=positive_tokens,
        num_value_sequences=value_sequences,
        agent=agent[rows.to(agent.device)],
    )


def _draw_rows(counts_by_agent: Tensor, mini_batch_size: int, seed: int) -> list[Tensor]:
    """This rank's rows of each mini-batch, on the CPU; a row with sample count n is drawn n times. Collective.

    `counts_by_agent`: `[rows of an agent here, agents]`.
    """
    agents = counts_by_agent.shape[1]
    counts = distributed.all_gather_rows(counts_by_agent).T.flatten().cpu()  # of the global buffer
    total = len(counts)
    places = torch.arange(total).view(agents, -1)[:, distributed.local_row_slice(counts_by_agent)].flatten()
    local_rows = torch.full((total,), -1).scatter(0, places, torch.arange(len(places)))  # this rank's row at each place
    drawn = torch.repeat_interleave(torch.arange(total), counts)
    order = torch.randperm(len(drawn), generator=torch.Generator().manual_seed(seed))
    return [local_rows[part][local_rows[part] >= 0] for part in drawn[order].split(mini_batch_size)]


def _count_targets(targets: Targets, drawn: Sequence[Tensor]) -> list[list[int]]:
    """Tokens, sequences, values, tokens of positive rows and sequences with values of each mini-batch over all ranks.

    With one reduction.
    """
    device = targets.loss_mask.device
    local_rows = [rows.to(device) for rows in drawn]
    row_tokens = targets.loss_mask.sum(dim=1)
    by_row = [
        row_tokens,
        targets.loss_mask.any(dim=1),
        targets.value_mask.sum(dim=1),
        row_tokens * targets.positive,
        targets.value_mask.any(dim=1),
    ]
    counts = [torch.stack([numbers[rows].sum() for rows in local_rows]) for numbers in by_row]
    return distributed.all_sum(torch.stack(counts, dim=1)).tolist()


def partition(costs: Sequence[float], parts: int) -> list[int]:
    """Assign each item to a part so that the total costs of the parts are nearly equal; returns each item's part.

    Largest differencing method (Karmarkar and Karp) for several parts: repeatedly merges the two partial solutions
    with the largest differences, expensive parts of one with cheap parts of the other.
    Deterministic: every rank computes the same result. Costs are at least 0.
    """
    if parts == 1 or not len(costs):
        return [0] * len(costs)
    sums = [np.zeros(parts) for _ in costs]  # by solution: costs of its parts, descending
    for solution, cost in zip(sums, costs, strict=True):
        solution[0] = cost
    # Each merged solution: the two solutions that it merges, and the order of the merged parts.
    made: list[tuple[int, int, np.ndarray]] = []
    heap = [(-cost, number) for number, cost in enumerate(costs)]
    heapq.heapify(heap)
    while len(heap) > 1:
        (_, left), (_, right) = heapq.heappop(heap), heapq.heappop(heap)
        merged = sums[left] + sums[right][::-1]
        order = np.argsort(-merged, kind="stable")
        made.append((left, right, order))
        sums.append(merged[order])
        heapq.heappush(heap, (float(merged.min() - merged.max()), len(sums) - 1))
    final_parts = {len(sums) - 1: np.arange(parts)}  # by solution: the final part of each of its parts
    for number in reversed(range(len(costs), len(sums))):
        left, right, order = made[number - len(costs)]
        final = np.empty(parts, dtype=np.int64)
        final[order] = final_parts.pop(number)
        final_parts[left], final_parts[right] = final, final[::-1]
    return [int(final_parts[item][0]) for item in range(len(costs))]


def count_row_tokens(rollout: Rollout) -> Tensor:
    """Tokens that a forward pass processes per row, `[B]`: prompt, used response columns, and detached turns."""
    own = rollout.prompt_mask.sum(dim=1) + rollout.length
    detached = [sum(len(turn.prompt) for turn in turns) for turns in rollout.detached]
    return own + torch.tensor(detached, dtype=own.dtype, device=own.device)


def balance_across_ranks(batch: Minibatch) -> Minibatch:
    """Redistribute a mini-batch's rows over ranks by token count; returns this rank's rows, maybe none. Collective.

    Ranks of a model-parallel group receive the same rows.
    """
    device = batch.agent.device
    gathered = distributed.gather_objects(
        (move_carrier(batch.rollout, "cpu"), move_carrier(batch.targets, "cpu"), batch.agent.cpu())
    )
    rollouts, targets, agents = zip(*gathered, strict=True)
    rows, goals, agent = concatenate_rows(rollouts), concatenate_rows(targets), torch.cat(agents)
    groups = partition(count_row_tokens(rows).tolist(), distributed.num_groups())
    own_rows = [row for row, group in enumerate(groups) if group == distributed.group_index()]
    return replace(
        batch,
        rollout=move_carrier(Rollout(**take_rows(rows, own_rows)), device),
        targets=move_carrier(Targets(**take_rows(goals, own_rows)), device),
        agent=agent[own_rows].to(device),
    )
