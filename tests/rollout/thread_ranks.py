"""Simulates ranks by threads, each with a copy of a model, and records their forwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from copy import deepcopy
from typing import Any

AnyRank = Callable[[bool], bool]


def on_ranks(count: int, model: Any, work: Callable[[int, Any, AnyRank], Any]) -> tuple[list[Any], list[list[int]]]:
    """The results of `work(rank, model, any_rank)` on each rank, and its forward counts at each barrier.

    `any_rank` is a barrier, as a collective is; the last count is of all forwards.
    """
    flags, barrier = [False] * count, threading.Barrier(count, timeout=30)
    found: list[Any] = [None] * count
    forwards: list[list[int]] = [[] for _ in range(count)]

    def run(rank: int) -> None:
        own, made = deepcopy(model), 0

        def counted(*_: Any) -> None:
            nonlocal made
            made += 1

        def any_rank(flag: bool) -> bool:
            forwards[rank].append(made)
            flags[rank] = flag
            barrier.wait()
            result = any(flags)
            barrier.wait()
            return result

        own.register_forward_hook(counted)
        found[rank] = work(rank, own, any_rank)
        forwards[rank].append(made)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return found, forwards
