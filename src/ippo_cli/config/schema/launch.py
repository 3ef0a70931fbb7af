"""`launch=`: processes and devices."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from ippo_cli.config.constraints import PositiveFloat, PositiveInt
from ippo_cli.config.marks import Frozen, InEval
from ippo_cli.config.schema.registry import option


class Device(str, Enum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


@option("launch")
@dataclass
class LaunchConfig:
    """Processes and devices."""

    processes: PositiveInt  # ranks started on this machine (ignored under torchrun, the deepspeed launcher and srun)
    nodes: PositiveInt  # machines; run the same command on each, with MASTER_ADDR, MASTER_PORT and NODE_RANK set
    device: InEval[Device]  # auto (cuda if available) | cpu | cuda
    threads: InEval[PositiveInt | None]  # CPU threads per rank; null = cores divided by ranks
    timeout_s: InEval[PositiveInt]  # seconds after which an unfinished collective is an error
    watchdog_s: PositiveFloat | None  # seconds without progress after which a run exits (code 11); null = never
    watchdog_first_s: PositiveFloat  # the same limit until the first iteration is done; loading takes longer
    placement: Frozen[dict[str, Any]]
    # ranks by component: {"actor,critic": 0-5, reference: 6, rollout: 6-7}, or by AGENT.actor; empty: all on all ranks
