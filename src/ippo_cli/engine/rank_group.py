"""Groups of ranks that hold a model, and the current group, on which the functions of `distributed` act."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist


@dataclass(frozen=True, slots=True, eq=False)
class RankGroup:
    """Some ranks of the run in ascending order, and their model-parallel groups of `parallel_size` ranks.

    In the body of `with group.activate()`, the functions of `distributed` act on these ranks, numbered from 0.
    """

    ranks: tuple[int, ...]
    rank: int  # of this process within the group; -1 if it is not a member
    is_world: bool = True  # whether it has every rank of the run
    process_group: Any = None  # of torch; None for its default group, which has every rank
    parallel_size: int = 1
    parallel_group: Any = None  # process group of this rank's model-parallel group; None without model parallelism
    replicas: Any = None  # process group of the ranks with this rank's position in all model-parallel groups

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def is_member(self) -> bool:
        """Whether this process is one of the ranks."""
        return self.rank >= 0

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Make this the current group. Only for members."""
        global _current
        if not self.is_member:
            raise RuntimeError(f"this process is not one of ranks {self.ranks}")
        before, _current = _current, self
        try:
            yield
        finally:
            _current = before


_ALONE = RankGroup(ranks=(0,), rank=0)
_world = _current = _ALONE
_groups: dict[tuple[int, ...], RankGroup] = {}  # by their ranks


def current_group() -> RankGroup:
    """The group on which the functions of `distributed` act: the world, unless another is active."""
    return _current


def world_group() -> RankGroup:
    """The group of all ranks."""
    return _world


def create_world(rank: int, size: int, parallel_size: int, timeout: timedelta) -> None:
    """Create the group of all ranks. Collective."""
    global _world, _current
    _world = _current = _create(tuple(range(size)), rank, size, parallel_size, timeout)
    _groups[_world.ranks] = _world


def remove_groups() -> None:
    """Forget all groups, at the end of the process group."""
    global _world, _current
    _world = _current = _ALONE
    _groups.clear()


def rank_group(ranks: Sequence[int], timeout: timedelta) -> RankGroup:
    """The group of these ranks. The first call creates it: every rank calls it, in the same order."""
    key = tuple(sorted(ranks))
    if key not in _groups:
        # Models that are only read need no model-parallel groups.
        parallel_size = _world.parallel_size if len(key) % _world.parallel_size == 0 else 1
        _groups[key] = _create(key, _world.rank, _world.size, parallel_size, timeout)
    return _groups[key]


def _create(ranks: tuple[int, ...], rank: int, world_size: int, parallel_size: int, timeout: timedelta) -> RankGroup:
    """Create the process groups of a group. Its model-parallel groups are consecutive ranks, which launchers place on
    one machine.
    """
    if len(ranks) % parallel_size:
        raise ValueError(f"ranks_per_group={parallel_size} does not divide {len(ranks)} ranks")

    def create_own(subsets: list[tuple[int, ...]]) -> Any:
        """Create a process group for each subset, on every rank, and return that of this rank."""
        created = {subset: dist.new_group(list(subset), timeout=timeout) for subset in subsets}
        return next((created[subset] for subset in subsets if rank in subset), None)

    is_world = len(ranks) == world_size
    process_group = None if is_world else create_own([ranks])
    parallel_group = replicas = None
    if parallel_size > 1:
        parallel_group = create_own(
            [ranks[first : first + parallel_size] for first in range(0, len(ranks), parallel_size)]
        )
        replicas = create_own([ranks[position::parallel_size] for position in range(parallel_size)])
    return RankGroup(
        ranks=ranks,
        rank=ranks.index(rank) if rank in ranks else -1,
        is_world=is_world,
        process_group=process_group,
        parallel_size=parallel_size,
        parallel_group=parallel_group,
        replicas=replicas,
    )
