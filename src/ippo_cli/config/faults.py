"""`debug_faults`: fault injection at a given point of a run, on a given rank."""

from __future__ import annotations

import errno
import re
import signal
from dataclasses import dataclass

from ippo_cli.config.errors import ConfigError

FAULT_POINTS = (
    "compose",
    "init",
    "generate",
    "score",
    "targets",
    "forward",
    "backward",
    "step",
    "log",
    "save.write",
    "save.rename",
    "save.pointer",
    "prune",
)
"""Points of a run where a fault may be injected, in order; the code calls `fault_point(NAME)` at each."""
SIGNALS = {
    number.name.lower(): number
    for number in (
        signal.SIGKILL,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGINT,
        signal.SIGSTOP,
    )
}
DISK_ERRORS = {"enospc": errno.ENOSPC, "eio": errno.EIO, "eacces": errno.EACCES}
HANG = "hang"  # block forever and ignore signals
FAULT_KINDS = (*SIGNALS, *DISK_ERRORS, "error", HANG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault, injected when `rank` reaches the point for the `time`-th time."""

    point: str
    kind: str
    occurrence: int
    rank: int


def parse_fault(text: str) -> Fault:
    """Parse `POINT:KIND[:TIME[:RANK]]`, such as `save.rename:sigkill:2:1`. Raises `ConfigError`."""
    wanted = "use POINT:KIND[:TIME[:RANK]], such as save.rename:sigkill:2"
    parts = text.split(":")
    if not 2 <= len(parts) <= 4:
        raise ConfigError(f"debug_faults=[{text}]", f"has {len(parts)} parts", wanted)
    point, kind, time, rank = parts + ["1", "0"][len(parts) - 2 :]
    if point not in FAULT_POINTS:
        raise ConfigError(
            f"debug_faults=[{text}]", f"has an unknown point; known points: {' '.join(FAULT_POINTS)}", wanted
        )
    if kind not in FAULT_KINDS:
        raise ConfigError(
            f"debug_faults=[{text}]", f"has an unknown kind; known kinds: {' '.join(FAULT_KINDS)}", wanted
        )
    if not re.fullmatch(r"[1-9]\d*", time) or not re.fullmatch(r"\d+", rank):
        raise ConfigError(f"debug_faults=[{text}]", "needs whole numbers for time and rank", wanted)
    return Fault(point=point, kind=kind, occurrence=int(time), rank=int(rank))
