"""Stopwatch for the phases of an iteration, and the profiler, which shows the same phases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.autograd import DeviceType  # pyright: ignore[reportPrivateImportUsage]
from torch.profiler import ProfilerActivity, profile, record_function

from ippo_cli.config.errors import storage_error_message
from ippo_cli.engine import distributed
from ippo_cli.runs.folder import print_warning, write_atomically

RANGE_PREFIX = "ippo/"
"""Prefix of the profiler ranges in the table: phases, and agents within phases."""
MAX_OPERATORS = 12


@contextmanager
def profile_iteration(folder: Path, iteration: int, say: Callable[[str], None]) -> Iterator[None]:
    """Profile the block; write a trace per rank and rank 0's table to `profile/`, and pass the table to `say`.

    Traces are gzipped Chrome JSON for https://ui.perfetto.dev or chrome://tracing. Profiling slows down all
    operations, most of all small ones.
    """
    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as watch:
        yield
    with distributed.synchronize_errors():
        place = folder / "profile"
        table = _format_table(watch) if distributed.is_main() else ""
        try:
            place.mkdir(exist_ok=True)
            watch.export_chrome_trace(str(place / f"iteration_{iteration:08d}_rank_{distributed.rank()}.json.gz"))
            if distributed.is_main():
                write_atomically(place / f"iteration_{iteration:08d}.txt", table)
        except (OSError, RuntimeError) as error:  # the profiler raises RuntimeError if it cannot write a file
            reason = storage_error_message(error) or error
            print_warning(f"{place} cannot be written ({reason}); training continues")
        say(f"profile of iteration {iteration}: {place}\n{table}")


def _format_table(watch: profile) -> str:
    """A table of our ranges with seconds and share, then the operators with the longest self time."""
    events = watch.key_averages()
    ours = [event for event in events if event.key.startswith(RANGE_PREFIX) and event.device_type == DeviceType.CPU]
    whole = sum(event.cpu_time_total for event in ours if event.key.count("/") == 1) or 1.0
    lines = [f"{'phase':<28}{'seconds':>9}{'share':>8}{'calls':>8}"]
    for event in sorted(ours, key=lambda event: event.key):
        *_, name = event.key.split("/")
        shown = "  " * (event.key.count("/") - 1) + name
        seconds = event.cpu_time_total / 1e6
        lines.append(f"{shown:<28}{seconds:>9.3f}{event.cpu_time_total / whole:>8.1%}{event.count:>8}")
    lines.append(f"{'operator':<28}{'self s':>9}{'share':>8}{'calls':>8}")
    theirs = [event for event in events if not event.key.startswith(RANGE_PREFIX)]
    for event in sorted(theirs, key=_self_seconds, reverse=True)[:MAX_OPERATORS]:
        seconds = _self_seconds(event)
        lines.append(f"{event.key[:27]:<28}{seconds:>9.3f}{seconds * 1e6 / whole:>8.1%}{event.count:>8}")
    return "\n".join(lines) + "\n"


def _self_seconds(event: object) -> float:
    """Self time of an operator in seconds, on the GPU if available, else on the CPU."""
    device = event.self_device_time_total if torch.cuda.is_available() else event.self_cpu_time_total  # type: ignore
    return device / 1e6


def ignore_phase(phase: str) -> None:
    """Show no phase."""


@dataclass
class Stopwatch:
    """Seconds by phase of one iteration."""

    show_phase: Callable[[str], None] = ignore_phase  # called when a phase begins
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self.show_phase(phase)
        began = time.perf_counter()
        with record_function(f"{RANGE_PREFIX}{phase}"):
            yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began
