"""`debug_faults`: what is to go wrong on purpose, at which point of a run, and on which rank."""

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
"""Where a fault may happen, in the order in which a run comes by; each stands in the code as `fault_point(NAME)`."""
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
HANG = "hang"  # nothing more happens, and no signal is heard
FAULT_KINDS = (*SIGNALS, *DISK_ERRORS, "error", HANG)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong: the `time`-th time that `rank` comes by the point."""

    point: str
    kind: str
    time: int
    rank: int


def parse_fault(text: str) -> Fault:
    """`POINT:KIND[:TIME[:RANK]]`, such as `save.rename:sigkill:2:1`. Raises `ConfigError` for anything else."""
    wanted = "use POINT:KIND[:TIME[:RANK]], such as save.rename:sigkill:2"
    parts = text.split(":")
    if not 2 <= len(parts) <= 4:
        raise ConfigError(f"debug_faults=[{text}]", f"has {len(parts)} parts", wanted)
    point, kind, time, rank = parts + ["1", "0"][len(parts) - 2 :]
    if point not in FAULT_POINTS:
        raise ConfigError(f"debug_faults=[{text}]", f"names no point; these are {' '.join(FAULT_POINTS)}", wanted)
    if kind not in FAULT_KINDS:
        raise ConfigError(f"debug_faults=[{text}]", f"names no kind; these are {' '.join(FAULT_KINDS)}", wanted)
    if not re.fullmatch(r"[1-9]\d*", time) or not re.fullmatch(r"\d+", rank):
        raise ConfigError(f"debug_faults=[{text}]", "has no whole numbers for a time and a rank", wanted)
    return Fault(point=point, kind=kind, time=int(time), rank=int(rank))
