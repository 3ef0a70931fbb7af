"""Which rank works on which row of a mini-batch: as equal an amount of work on every rank as the rows allow."""

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
    """The part that each item goes to, so that the costs of parts are as equal as differencing makes them.

    The largest differencing method of Karmarkar and Karp for several parts: of all partial solutions the two with the
    largest differences between parts become one, the dear parts of one with the cheap parts of the other.
    A function of its arguments alone: every rank computes the same. Costs are at least 0.
    """
    if parts == 1 or not len(costs):
        return [0] * len(costs)
    sums = [np.zeros(parts) for _ in costs]  # by solution: of its parts, largest first
    for solution, cost in zip(sums, costs, strict=True):
        solution[0] = cost
    # A solution beyond the items: the two that it was made of, and which of their parts became its parts.
    made: list[tuple[int, int, np.ndarray]] = []
    heap = [(-cost, number) for number, cost in enumerate(costs)]
    heapq.heapify(heap)
    while len(heap) > 1:
        (_, one), (_, other) = heapq.heappop(heap), heapq.heappop(heap)
        both = sums[one] + sums[other][::-1]
        order = np.argsort(-both, kind="stable")
        made.append((one, other, order))
        sums.append(both[order])
        heapq.heappush(heap, (float(both.min() - both.max()), len(sums) - 1))
    where = {len(sums) - 1: np.arange(parts)}  # by solution: the final part that each of its parts is in
    for number in reversed(range(len(costs), len(sums))):
        one, other, order = made[number - len(costs)]
        final = np.empty(parts, dtype=np.int64)
        final[order] = where.pop(number)
        where[one], where[other] = final, final[::-1]
    return [int(where[item][0]) for item in range(len(costs))]


def count_row_tokens(rollout: Rollout) -> Tensor:
    """What a forward reads of each row, `[B]`: its prompt, its response columns in use, its detached turns."""
    own = rollout.prompt_mask.sum(dim=1) + rollout.length
    detached = [sum(len(turn.prompt) for turn in turns) for turns in rollout.detached]
    return own + torch.tensor(detached, dtype=own.dtype, device=own.device)


def balance_across_ranks(batch: Minibatch) -> Minibatch:
    """The rows of a mini-batch on all ranks, dealt out anew: this rank's share, which may be none. Collective."""
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
