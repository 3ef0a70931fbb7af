"""What a condition finds in a run: a sentence, its evidence, and what to try."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ippo_cli.config.schema import Config

Row = Mapping[str, float]


class Certainty(str, Enum):
    """How sure a finding is: `certain` follows from the numbers, `likely` and `possible` have other explanations."""

    certain = "certain"
    likely = "likely"
    possible = "possible"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Values of a metric, or of a key, in some iterations; `iterations` is None if it has none."""

    name: str
    values: str
    iterations: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A condition that a run fulfils. `text` and `advice` are one line together."""

    agents: tuple[str, ...]
    text: str
    advice: str
    evidence: tuple[Evidence, ...] = ()
    overrides: tuple[str, ...] = ()  # `key=value`, to try one by one
    certainty: Certainty = Certainty.likely

    @property
    def line(self) -> str:
        """The finding as a warning of one line."""
        return f"{self.text}; {self.advice}"


@dataclass(frozen=True, slots=True)
class NotChecked:
    """The run lacks what a condition reads."""

    reason: str


Outcome = Finding | NotChecked | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """What is known of a run. Live warnings know only the configuration and the last rows."""

    config: Config
    rows: Sequence[Row]  # training iterations, oldest first
    initial: Row | None = None  # the evaluation before training
    episodes: Sequence[Mapping[str, Any]] = ()  # sampled episodes of training and evaluations, oldest first
    train_rows: int | None = None  # examples of the training data; None if unknown
    held_out_rows: int | None = None  # examples of the held-out data; None if unknown
    chat_templates: Mapping[str, bool] = field(
        default_factory=dict
    )  # by agent, whether its tokenizer has one; only those known
    sampled_kl: Mapping[str, Mapping[int, float]] = field(
        default_factory=dict
    )  # by agent and iteration, KL of an update in nats per sampled token
    unchanged_adapters: Sequence[str] = ()  # agents with a saved LoRA adapter that adds 0 to its base

    @property
    def is_from_start(self) -> bool:
        """Whether the rows begin with the first iteration."""
        return bool(self.rows) and int(self.rows[0]["iteration"]) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """A named condition.

    `find`: its rule for a whole run. `warn`: its rule for the last rows during training; None without a live warning.
    `explains`: conditions that are its consequences. `reads_last_rows`: whether `find` reads the last iterations alone,
    so that it does not know whether the condition held before.
    """

    name: str
    title: str
    find: Callable[[Observations], Outcome]
    warn: Callable[[Observations], Outcome] | None = None
    explains: tuple[str, ...] = ()
    reads_last_rows: bool = False
    needs_policy_updates: bool = False  # not checked with mode=critic


def metric_evidence(rows: Sequence[Row], name: str, note: str = "") -> Evidence:
    """First and last value of a metric, and its iterations."""
    known = [(int(row["iteration"]), row[name]) for row in rows if not math.isnan(row.get(name, math.nan))]
    if not known:
        return Evidence(name, "no value")
    ends = [format_value(known[0][1])] + ([format_value(known[-1][1])] if len(known) > 1 else [])
    return Evidence(name, " -> ".join(ends) + (f" ({note})" if note else ""), (known[0][0], known[-1][0]))


def format_value(value: float) -> str:
    """A number with at most three significant digits."""
    return f"{value:.3g}"
