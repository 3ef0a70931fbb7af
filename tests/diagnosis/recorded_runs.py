"""Recorded runs of `scripts/bench/failing_runs.py`: what the conditions read of them."""

from __future__ import annotations

import gzip
import json
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ippo_cli.compose.earlier_versions import fill_missing_keys
from ippo_cli.compose.load import build_config, compose_node, resolve_config
from ippo_cli.diagnosis.finding import Observations

FOLDER = Path(__file__).parent / "recorded"


@dataclass(frozen=True)
class RecordedRun:
    """A run, the condition that its diagnosis must have (none if it is healthy), and what is known of it."""

    name: str
    expected: tuple[str, ...]
    observations: Observations


@cache
def read_runs(kind: str) -> dict[str, RecordedRun]:
    """The runs of `failing.json.gz` or `healthy.json.gz` by name."""
    with gzip.open(FOLDER / f"{kind}.json.gz") as packed:
        return {entry["name"]: _read_run(entry) for entry in json.load(packed)}


def _read_run(entry: dict[str, Any]) -> RecordedRun:
    observations = Observations(
        config=build_config(fill_missing_keys(entry["config"], _default_config())),
        rows=[_read_row(row) for row in entry["rows"]],
        initial=_read_row(entry["initial"]) or None,
        episodes=entry["episodes"],
        train_rows=entry["train_rows"],
        held_out_rows=entry["held_out_rows"],
        chat_templates=entry["chat_templates"],
        sampled_kl={
            name: {int(number): kl for number, kl in values.items()}
            for name, values in entry.get("sampled_kl", {}).items()
        },
        unchanged_adapters=tuple(entry["unchanged_adapters"]),
    )
    return RecordedRun(entry["name"], tuple(entry["expected"]), observations)


@cache
def _default_config() -> dict[str, Any]:
    """Values of keys that are newer than a recorded run."""
    return resolve_config(compose_node([]))


def _read_row(row: dict[str, float | None]) -> dict[str, float]:
    return {name: math.nan if value is None else value for name, value in row.items()}


def run_names(kind: str) -> list[str]:
    """The names of the recorded runs, without reading their configurations."""
    with gzip.open(FOLDER / f"{kind}.json.gz") as packed:
        return [entry["name"] for entry in json.load(packed)]
