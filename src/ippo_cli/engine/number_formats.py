"""Which number format this machine computes fast: bf16 on GPUs and on processors with bf16 instructions.

Other processors emulate it: a product of matrices takes five (AVX-512) to eighty (AVX2) times as long as in float32.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

PROBE_SIZE = 256  # rows and columns of the matrices; 15 ms in emulated bf16, below a millisecond otherwise
PROBE_REPEATS = 3
_INSTRUCTIONS = re.compile(r"^(?:flags|Features)\s*:.*\b(?:avx512_bf16|amx_bf16|bf16)\b", re.MULTILINE)  # x86, ARM


def default_dtype(planned_devices: int | None = None, root: Path = Path("/")) -> str:
    """The default of `actor.dtype`: bf16 where it is fast, else fp32. `planned_devices`: GPUs of `plan=`."""
    return "bf16" if planned_devices or has_gpu(root) or has_bf16_instructions(root) else "fp32"


def has_gpu(root: Path = Path("/")) -> bool:
    """Whether this process may use a GPU; does not import torch. `root` contains `/dev`."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return any((root / "dev" / name).exists() for name in ("nvidiactl", "dxg", "kfd"))


@cache
def has_bf16_instructions(root: Path = Path("/")) -> bool:
    """Whether the processor has instructions for products of bf16 numbers. `root` contains `/proc`."""
    try:
        return _INSTRUCTIONS.search((root / "proc" / "cpuinfo").read_text(errors="replace")) is not None
    except OSError:  # not Linux
        return False


@cache
def measure_bf16_slowdown() -> float:
    """The time of a matrix product in bf16 on this processor as a multiple of the time in float32."""
    import torch

    single = torch.ones(PROBE_SIZE, PROBE_SIZE)
    half = single.bfloat16()
    return _shortest_time(lambda: half @ half) / _shortest_time(lambda: single @ single)


def _shortest_time(function: Callable[[], object]) -> float:
    times = []
    for _ in range(PROBE_REPEATS + 1):
        began = time.perf_counter()
        function()
        times.append(time.perf_counter() - began)
    return min(times[1:])
