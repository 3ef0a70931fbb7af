"""Faults on purpose: what `debug_faults` asks for happens at named points of a run, to show what it survives.

Imports no torch: a command comes by its first point before it has any.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence

from ippo_cli.config.faults import DISK_ERRORS, HANG, SIGNALS, Fault, parse_fault

_armed_faults: list[Fault] = []  # of this process
_point_counts: Counter[str] = Counter()  # how often it came by each point


def arm_faults(texts: Sequence[str], rank: int) -> None:
    """Let these faults happen in this process, in place of those of an earlier run; points are counted from here."""
    _point_counts.clear()
    _armed_faults[:] = [one for one in map(parse_fault, texts) if one.rank == rank]


def fault_point_counts() -> dict[str, int]:
    """How often this process came by each point; counted where any fault is armed."""
    return dict(_point_counts)


def fault_point(name: str) -> None:
    """A point of a run at which a fault may have been asked for; without any this does nothing."""
    if not _armed_faults:
        return
    _point_counts[name] += 1
    for one in _armed_faults:
        if (one.point, one.time) == (name, _point_counts[name]):
            _trigger_fault(one)


def _trigger_fault(one: Fault) -> None:
    if one.kind in SIGNALS:
        os.kill(os.getpid(), SIGNALS[one.kind])
    elif one.kind in DISK_ERRORS:
        number = DISK_ERRORS[one.kind]
        raise OSError(number, os.strerror(number), f"debug_faults at {one.point}")
    elif one.kind == HANG:
        while True:
            time.sleep(3600)
    else:
        raise RuntimeError(f"debug_faults asks for an error at {one.point}")
