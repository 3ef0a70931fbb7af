"""Fault injection: `debug_faults` triggers signals, errors and hangs at named points of a run.

Does not import torch: commands reach their first fault point before torch is loaded.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence

from ippo_cli.config.faults import DISK_ERRORS, HANG, SIGNALS, Fault, parse_fault

_armed_faults: list[Fault] = []  # of this process
_point_counts: Counter[str] = Counter()  # how often it reached each point


def arm_faults(texts: Sequence[str], rank: int) -> None:
    """Arm these faults in this process, replace earlier ones, and reset the point counts."""
    _point_counts.clear()
    _armed_faults[:] = [fault for fault in map(parse_fault, texts) if fault.rank == rank]


def fault_point_counts() -> dict[str, int]:
    """How often this process reached each point; counted only if a fault is armed."""
    return dict(_point_counts)


def fault_point(name: str) -> None:
    """Trigger the faults that are armed for this point; does nothing if no fault is armed."""
    if not _armed_faults:
        return
    _point_counts[name] += 1
    for fault in _armed_faults:
        if (fault.point, fault.occurrence) == (name, _point_counts[name]):
            _trigger_fault(fault)


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
        raise RuntimeError(f"debug_faults triggers an error at {one.point}")
