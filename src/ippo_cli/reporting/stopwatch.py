"""Stopwatch for the phases of an iteration; the profiler shows the same phases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch.profiler import record_function

from ippo_cli.reporting.profile import RANGE_PREFIX


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
