"""Distribution of a mini-batch's rows over ranks, balanced by token count."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ippo_cli.engine import distributed
from ippo_cli.types import Minibatch, Rollout, Targets, concatenate_rows, take_rows

Carrier = TypeVar("Carrier", Rollout, Targets)


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
    """Redistribute a mini-batch's rows over ranks by token count; returns this rank's rows, maybe none. Collective."""
    device = batch.agent.device
    gathered = distributed.gather_objects(
        (_to_device(batch.rollout, "cpu"), _to_device(batch.targets, "cpu"), batch.agent.cpu())
    )
    rollouts, targets, agents = zip(*gathered, strict=True)
    rows, goals, agent = concatenate_rows(rollouts), concatenate_rows(targets), torch.cat(agents)
    ranks = partition(count_row_tokens(rows).tolist(), distributed.world_size())
    own_rows = [row for row, rank in enumerate(ranks) if rank == distributed.rank()]
    return replace(
        batch,
        rollout=_to_device(Rollout(**take_rows(rows, own_rows)), device),
        targets=_to_device(Targets(**take_rows(goals, own_rows)), device),
        agent=agent[own_rows].to(device),
    )


def _to_device(carrier: Carrier, device: torch.device | str) -> Carrier:
    columns = {entry.name: getattr(carrier, entry.name) for entry in fields(carrier)}
    return replace(carrier, **{name: value.to(device) for name, value in columns.items() if isinstance(value, Tensor)})
