"""Findings of pilots by name, and the verdicts that they imply."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from ippo_cli.diagnosis.finding import Finding, Observations, format_value
from ippo_cli.pilot.measure import Measurement
from ippo_cli.pilot.statistics import Estimate


class Verdict(str, Enum):
    """Whether a run will learn."""

    no_signal = "no signal"
    too_large_steps = "too large steps"
    slow = "slow"
    learns = "learns"


@dataclass(frozen=True, slots=True)
class NamedFinding:
    """A finding by name, and the verdict that it implies at best."""

    name: str
    finding: Finding
    verdict: Verdict


Check = Callable[[Measurement, Observations], Iterator[NamedFinding]]


def format_estimate(estimate: Estimate) -> str:
    """A number with its interval."""
    interval = f" [{format_value(estimate.low)}, {format_value(estimate.high)}]" if math.isfinite(estimate.low) else ""
    return f"{format_value(estimate.value)}{interval}"
