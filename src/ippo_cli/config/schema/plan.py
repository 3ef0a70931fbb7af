"""`plan=`: the devices that `mode=plan` computes for, where they are not this machine's."""

from __future__ import annotations

from dataclasses import dataclass

from ippo_cli.config.constraints import PositiveFloat, PositiveInt


@dataclass
class PlanConfig:
    """The devices that mode=plan computes for. All keys are null (this machine) or none is; training reads none."""

    devices: PositiveInt | None  # of the whole run, with a rank on each; null = launch.processes on this machine
    per_machine: PositiveInt | None  # devices in one machine
    memory_gib: PositiveFloat | None  # of one device
    machine_memory_gib: PositiveFloat | None  # of one machine: what is offloaded lies there
    tflops: PositiveFloat | None  # what one device computes, in 10^12 operations a second in the models' type
    memory_gb_per_s: PositiveFloat | None  # what one device reads of its memory
    link_gb_per_s: PositiveFloat | None  # what one device sends to others in its machine, and receives at once
    network_gb_per_s: PositiveFloat | None  # likewise to devices of other machines
