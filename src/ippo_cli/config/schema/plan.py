"""`plan=`: hardware that `mode=plan` assumes instead of this machine's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ippo_cli.config.constraints import PositiveFloat, PositiveInt, Range
from ippo_cli.config.schema.registry import option


@option("plan")
@dataclass
class PlanConfig:
    """Hardware that mode=plan assumes; training ignores it. Set the first four keys or none (this machine), and the
    others, for a time line, all or none."""

    devices: PositiveInt | None  # devices of the run, one rank on each; null = launch.processes on this machine
    per_machine: PositiveInt | None  # devices per machine
    memory_gib: PositiveFloat | None  # memory of one device, in GiB
    machine_memory_gib: PositiveFloat | None  # host memory of one machine, in GiB; holds offloaded tensors
    peak_tflops: PositiveFloat | None  # bf16 matrix products of one device without sparsity, 10^12 operations/s
    memory_bandwidth: PositiveFloat | None  # memory of one device, in 10^9 bytes/s, as the next three
    link_bandwidth: PositiveFloat | None  # from one device to others of its machine, one direction
    network_bandwidth: PositiveFloat | None  # from one device to other machines, one direction
    host_bandwidth: PositiveFloat | None  # between one device and host memory, one direction
    mfu: Annotated[float, Range(0.0, 1.0, open_low=True)] | None
    # assumed: fraction of peak_tflops that passes over whole rows reach
    decode_efficiency: Annotated[float, Range(0.0, 1.0, open_low=True)] | None
    # assumed: fraction of memory_bandwidth that decoding reaches
