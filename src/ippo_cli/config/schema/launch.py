"""`launch=`: processes and devices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ippo_cli.config.constraints import PositiveFloat, PositiveInt


class Device(str, Enum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


@dataclass
class LaunchConfig:
    """Processes and devices."""

    processes: PositiveInt  # ranks started on this machine (ignored under torchrun, the deepspeed launcher and srun)
    nodes: PositiveInt  # machines; the same line is typed on each, with MASTER_ADDR, MASTER_PORT and NODE_RANK
    device: Device  # auto (cuda where there is one) | cpu | cuda
    threads: PositiveInt | None  # CPU threads per rank; null = cores divided by ranks
    timeout_s: PositiveInt  # seconds after which a collective that does not finish is an error
    watchdog_s: PositiveFloat | None  # seconds without any progress that end a run (exit code 11); null = never
    watchdog_first_s: PositiveFloat  # the same until the first iteration is done: loading may be silent for longer
