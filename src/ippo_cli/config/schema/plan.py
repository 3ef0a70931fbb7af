"""`plan=`: hardware that `mode=plan` assumes instead of this machine's."""

from __future__ import annotations

from dataclasses import dataclass

from ippo_cli.config.constraints import PositiveFloat, PositiveInt
from ippo_cli.config.schema.registry import option


@option("plan")
@dataclass
class PlanConfig:
    """Hardware that mode=plan assumes; training ignores it. Set all keys or none (this machine)."""

    devices: PositiveInt | None  # devices of the run, one rank on each; null = launch.processes on this machine
    per_machine: PositiveInt | None  # devices per machine
    memory_gib: PositiveFloat | None  # memory of one device, in GiB
    machine_memory_gib: PositiveFloat | None  # host memory of one machine, in GiB; holds offloaded tensors
