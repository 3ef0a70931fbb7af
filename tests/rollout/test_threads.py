"""map_in_threads uses threads only for slow items."""

from __future__ import annotations

import threading
import time

import pytest

from ippo_cli.config.errors import PreemptionRequested
from ippo_cli.rollout.threads import map_in_threads


def test_fast_items_run_in_caller() -> None:
    done: list[tuple[int, str]] = []
    map_in_threads(range(50), lambda item: done.append((item, threading.current_thread().name)), workers=8)
    assert done == [(item, "MainThread") for item in range(50)]


def test_many_fast_items_run_in_caller() -> None:
    names: set[str] = set()

    def quick(item: int) -> None:
        until = time.perf_counter() + 0.0001
        while time.perf_counter() < until:
            pass
        names.add(threading.current_thread().name)

    map_in_threads(range(1000), quick, workers=8)
    assert names == {"MainThread"}


def test_slow_items_run_in_threads() -> None:
    began, threads = time.perf_counter(), set()

    def slow(item: int) -> None:
        time.sleep(0.05)
        threads.add(threading.current_thread().name + str(threading.get_ident()))

    map_in_threads(range(33), slow, workers=16)
    assert time.perf_counter() - began < 33 * 0.05 / 3
    assert len(threads) > 8


def test_one_worker_runs_sequentially() -> None:
    done: list[int] = []

    def slow(item: int) -> None:
        time.sleep(0.03 - 0.01 * item)
        done.append(item)

    map_in_threads(range(3), slow, workers=1)
    assert done == [0, 1, 2]


def test_first_exception_raised() -> None:
    def fail(item: int) -> None:
        time.sleep(0.03)
        if item in (3, 5):
            raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 3"):
        map_in_threads(range(8), fail, workers=4)


@pytest.mark.parametrize(("workers", "seconds"), [(1, [0.0, 0.0, 0.0]), (4, [0.03, 30.0, 30.0])])
def test_poll_exception_abandons_threads(workers: int, seconds: list[float]) -> None:
    began, polled = time.perf_counter(), 0

    def poll() -> None:
        nonlocal polled
        polled += 1
        if polled == 2:
            raise PreemptionRequested

    with pytest.raises(PreemptionRequested):
        map_in_threads(seconds, time.sleep, workers=workers, poll=poll)
    assert time.perf_counter() - began < 5
