"""Runs that the parts of `gpu.py` measure: shapes, overrides, and what is computed from the metrics."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch
from material import PROMPT_WORDS, Shape

SOURCE = Path(__file__).parents[2] / "src"
POLL_S = 0.5  # time between two readings of the device's memory

SHAPES = {  # shapes of Qwen2.5, as Llama models
    "0.5B": Shape(layers=24, hidden=896, heads=14, key_value_heads=2, intermediate=4864, vocabulary=151_936, tied=True),
    "1.5B": Shape(
        layers=28, hidden=1536, heads=12, key_value_heads=2, intermediate=8960, vocabulary=151_936, tied=True
    ),
    "tiny": Shape(layers=2, hidden=64, heads=2, key_value_heads=1, intermediate=128, vocabulary=512, tied=True),
}
COMMON = (
    "algorithm=ppo",
    "algorithm.ppo_epochs=1",
    "evaluation.every=0",
    "evaluation.greedy=false",
    "checkpoint.every=0",
    "checkpoint.optimizer=false",  # else 16 bytes per parameter and model, written for minutes at the end
    "tracker.console=plain",
    "tracker.tensorboard=false",
)


@dataclass(frozen=True, kw_only=True)
class Given:
    """Command-line options."""

    device: str
    shapes: tuple[str, ...]
    tokens: int  # tokens per response
    rows: int  # rows per buffer
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Measured peak rates of the device; utilization is relative to them."""

    flops: float  # per second, in a bf16 matrix product
    bandwidth: float  # bytes per second, read and written by a copy


class RunError(Exception):
    """A run ended with an exit code other than 0; `code` and the end of its output."""

    def __init__(self, code: int, output: str) -> None:
        super().__init__(f"exit code {code}: {output}")
        self.code = code


def bf16(given: Given) -> list[str]:
    return [
        *COMMON,
        "actor.dtype=bf16",
        "critic.dtype=bf16",
        "actor.learning_rate=1e-6",
        "critic.learning_rate=1e-6",
        "algorithm.kl.loss.coef=0",
        f"rollout.buffer_size={given.rows}",
        f"rollout.decode_batch_size={given.rows}",
        f"rollout.max_new_tokens={given.tokens}",
        f"algorithm.mini_batch_size={given.rows}",
        "num_iterations=3",
        f"launch.device={given.device}",
    ]


def train(overrides: Sequence[str], device: str = "cpu") -> list[dict[str, float]]:
    """Train and return the metrics of each iteration. Raises `RunError`.

    On a GPU every row has `device_memory_mib`, the most memory that all processes used on it during the run.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}
    with DeviceMemory(device) as memory:
        done = subprocess.run(
            [sys.executable, "-m", "ippo_cli.cli.train", *overrides], env=environment, capture_output=True, text=True
        )
    if done.returncode:
        raise RunError(done.returncode, done.stderr[-1200:])
    (folder,) = [text.partition("=")[2] for text in overrides if text.startswith("output_dir=")][-1:]
    (metrics,) = Path(folder).rglob("metrics.jsonl")
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    return [row | memory.found for row in rows if "time/iteration" in row]


class DeviceMemory:
    """Reads the memory in use on the first GPU with `nvidia-smi` while its block runs: vLLM's is not torch's."""

    def __init__(self, device: str) -> None:
        self.found: dict[str, float] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True) if device == "cuda" else None

    def __enter__(self) -> DeviceMemory:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _poll(self) -> None:
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
        while not self._ended.is_set():
            try:
                used = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            except (OSError, subprocess.CalledProcessError, ValueError):
                return
            self.found["device_memory_mib"] = max(used, self.found.get("device_memory_mib", 0.0))
            self._ended.wait(POLL_S)


def summarize(given: Given, shape: Shape, rows: Sequence[Mapping[str, float]], reached: Peak) -> dict[str, float]:
    """Seconds of an iteration's phases, decoded tokens per second, shares of the peak rates, and memory."""
    phases = ("rollout", "targets", "update", "iteration")
    seconds = {key: statistics.median(row[f"time/{key}"] for row in rows) for key in phases}
    decoding = statistics.median(row["time/rollout"] - row.get("time/weights", 0.0) for row in rows)
    read = given.tokens * (2 * shape.parameters + given.rows * (PROMPT_WORDS + given.tokens / 2) * _cache_bytes(shape))
    tokens = given.rows * (PROMPT_WORDS + given.tokens)
    # Forward and backward of actor and critic: six operations per weight and token, plus attention products.
    attention = 12 * shape.layers * shape.hidden * (PROMPT_WORDS + given.tokens) / 2
    operations = 2 * tokens * (6 * shape.parameters + attention)
    found = {f"{key}_s": value for key, value in seconds.items()} | {
        "tokens_per_second_decoded": given.rows * given.tokens / decoding,
        "decode_share_of_bandwidth": read / decoding / reached.bandwidth,
        "update_mfu": operations / seconds["update"] / reached.flops,
        "peak_memory_mib": max(row["perf/peak_memory_mib"] for row in rows),
    }
    if "device_memory_mib" in rows[0]:
        found["device_memory_mib"] = rows[0]["device_memory_mib"]
    gap = [row[key] for row in rows for key in row if key.endswith("ratio_first_step_deviation")]
    return found | {"sampler_against_trainer_largest_ratio_deviation": max(gap, default=math.nan)}


def _cache_bytes(shape: Shape) -> int:
    """Return bytes of one token's keys and values in bf16."""
    return 2 * 2 * shape.layers * (shape.key_value_heads or shape.heads) * (shape.hidden // shape.heads)


def measure_peak(device: str) -> Peak:
    """Measure the peak rates of a device in a process that ends, so that the runs to measure have the whole memory."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure_peak, device).result()


def _measure_peak(device: str) -> Peak:
    size = 8192 if device == "cuda" else 512
    one = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    product = shortest_seconds(lambda: one @ one, device)
    many = torch.empty((1 << 30) if device == "cuda" else (1 << 24), device=device, dtype=torch.uint8)
    other = torch.empty_like(many)
    copy = shortest_seconds(lambda: other.copy_(many), device)
    return Peak(flops=2 * size**3 / product, bandwidth=2 * many.numel() / copy)


def shortest_seconds(work: Callable[[], object], device: str, repeat: int = 5) -> float:
    """Return the shortest of several times, after one uncounted run."""
    found = []
    for _ in range(repeat + 1):
        began = _now(device)
        work()
        found.append(_now(device) - began)
    return min(found[1:])


def count_kernels_and_waits(work: Callable[[], object]) -> dict[str, int]:
    """Count the kernels of some work on the GPU, and how often the CPU waits for the GPU."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    work()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        work()
    events = profiler.key_averages()
    names = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize")
    kernels = [each for each in events if each.device_type is DeviceType.CUDA and not each.key.startswith("Mem")]
    return {
        "kernels": sum(each.count for each in kernels),
        "waits": sum(each.count for each in events if each.key in names),
    }


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
