"""A profile of one iteration on request: a trace that opens in the usual viewers, and a table of its phases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.autograd import DeviceType  # pyright: ignore[reportPrivateImportUsage]
from torch.profiler import ProfilerActivity, profile

from ippo_cli.config.errors import storage_error_message
from ippo_cli.engine import distributed
from ippo_cli.runs.folder import print_warning, write_atomically

RANGE_PREFIX = "ippo/"
"""Of the ranges that the table shows: phases, and what each agent does in them."""
MAX_OPERATORS = 12


@contextmanager
def profile_iteration(folder: Path, iteration: int, say: Callable[[str], None]) -> Iterator[None]:
    """Watch what happens inside; leave `profile/` with a trace of every rank, and rank 0's table, which is also said.

    The traces are Chrome's JSON, gzipped: https://ui.perfetto.dev and chrome://tracing open them. Watching makes
    everything slower, small operations most.
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
        except (OSError, RuntimeError) as error:  # the profiler has the second for a file that it cannot write
            print_warning(f"{place} cannot be written ({storage_error_message(error) or error}); training goes on")
        say(f"profile of iteration {iteration}: {place}\n{table}")


def _format_table(watch: profile) -> str:
    """Ranges of ours with their seconds and share, then the operators that took longest themselves."""
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
        lines.append(
            f"{event.key[:27]:<28}{_self_seconds(event):>9.3f}{_self_seconds(event) * 1e6 / whole:>8.1%}{event.count:>8}"
        )
    return "\n".join(lines) + "\n"


def _self_seconds(event: object) -> float:
    """Seconds in the operator itself, on the device that does the work."""
    device = event.self_device_time_total if torch.cuda.is_available() else event.self_cpu_time_total  # type: ignore
    return device / 1e6
