"""Calls to models that only some ranks hold: rows go to these ranks, and results return to the ranks of the rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from ippo_cli.engine import distributed
from ippo_cli.engine.rank_group import RankGroup
from ippo_cli.tasks.schedule import rank_range
from ippo_cli.types import Rollout, concatenate_rows, move_carrier, take_rows

C = TypeVar("C", bound=Any)


def compute_on_group(
    group: RankGroup, rollout: Rollout, compute: Callable[[Rollout], tuple[Tensor, ...]]
) -> tuple[Tensor, ...]:
    """Compute tensors `[B]` or `[B, R]` of this rank's rows on the ranks of a group. Collective over the world.

    Each rank of the group computes those of a contiguous part of the rows of all ranks.
    """
    if group.is_world:
        return compute(rollout)
    device, width = rollout.response_ids.device, rollout.response_ids.shape[1]
    counts, rows = _gather_rows(rollout, len(rollout.texts))
    results = None
    if group.is_member:
        own = rank_range(sum(counts), group.rank, group.size)
        part = move_carrier(Rollout(**take_rows(rows, own or [0])), device)  # ranks without rows take part
        with group.activate():
            results = tuple(tensor[: len(own)].cpu() for tensor in compute(part))
    parts = [found for found in distributed.gather_objects(results) if found is not None]
    first = sum(counts[: distributed.rank()])
    computed = [
        torch.cat(columns)[first : first + len(rollout.texts)].to(device) for columns in zip(*parts, strict=True)
    ]
    return tuple(tensor if tensor.dim() == 1 else tensor[:, :width] for tensor in computed)


def share_rows(group: RankGroup, carrier: C, count: int, device: torch.device) -> C | None:
    """This rank's part of the rows of all ranks, of which this rank has `count`; None on ranks outside the group.

    Collective over the world. The part is contiguous, so that the order of all rows remains.
    """
    if group.is_world:
        return carrier
    counts, rows = _gather_rows(carrier, count)
    if not group.is_member:
        return None
    return move_carrier(type(carrier)(**take_rows(rows, rank_range(sum(counts), group.rank, group.size))), device)


def _gather_rows(carrier: C, count: int) -> tuple[list[int], C]:
    """The number of rows of each rank, and all of them on the CPU, in rank order."""
    gathered = distributed.gather_objects((count, move_carrier(carrier, "cpu")))
    return [count for count, _ in gathered], concatenate_rows([part for _, part in gathered])
