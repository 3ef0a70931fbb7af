"""`plan=`: hardware that `mode=plan` assumes instead of this machine's."""

from __future__ import annotations

from dataclasses import dataclass

from ippo_cli.config.constraints import PositiveFloat, PositiveInt
from ippo_cli.config.schema.registry import option


@option("plan")
@dataclass
class PlanConfig:
    """Hardware that mode=plan assumes. Set all keys, or none (this machine); training ignores them."""

    devices: PositiveInt | None  # devices of the run, one rank on each; null = launch.processes on this machine
    per_machine: PositiveInt | None  # devices per machine
    memory_gib: PositiveFloat | None  # memory of one device, in GiB
    machine_memory_gib: PositiveFloat | None  # host memory of one machine, in GiB; holds offloaded tensors
    tflops: PositiveFloat | None  # throughput of one device in 10^12 operations per second, in the models' dtype
    memory_gb_per_s: PositiveFloat | None  # memory bandwidth of one device, in GB/s
    link_gb_per_s: PositiveFloat | None  # bandwidth of one device to devices of its machine, in GB/s per direction
    network_gb_per_s: PositiveFloat | None  # bandwidth of one device to other machines, in GB/s per direction
