"""Probabilities of outcomes: from features that are written by hand, and of the recorded pilots."""

from __future__ import annotations

import gzip
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ippo_cli.pilot.outlook import FEATURES, WORDS, apply_table, forecast_outcomes, measure_features, read_table

DATA = Path(__file__).parents[2] / "docs" / "data" / "pilot_outcomes.jsonl.gz"
with gzip.open(DATA, "rt") as lines:
    RECORDED = [json.loads(line) for line in lines]


def probabilities(**values: float) -> dict[str, float]:
    return apply_table(dict.fromkeys(FEATURES, math.nan) | values, read_table())


def test_probabilities_sum_to_one() -> None:
    found = probabilities(step_kl=-2.0, gain=1.0)
    assert found.keys() == WORDS.keys()
    assert sum(found.values()) == pytest.approx(1)


def test_larger_steps_collapse_more_and_gains_learn_more() -> None:
    assert probabilities(step_kl=0.5)["collapsed"] > probabilities(step_kl=-2.5)["collapsed"]
    assert probabilities(large_step=1.0)["collapsed"] > probabilities(large_step=0.0)["collapsed"]
    assert probabilities(gain=2.0)["learned"] > probabilities(gain=-1.0)["learned"]


def test_values_beyond_the_fitted_ones_count_as_the_limit() -> None:
    assert probabilities(step_kl=50.0) == probabilities(step_kl=read_table().limits["step_kl"][1])


def test_table_is_that_of_the_recorded_pilots() -> None:
    """The mean probability of each outcome is its frequency, as intercepts are not penalised."""
    counts = Counter(record["outcome"] for record in RECORDED)
    found = [apply_table(measure_features(record), read_table()) for record in RECORDED]
    assert read_table().runs == len(RECORDED)
    for outcome in WORDS:
        mean = sum(own[outcome] for own in found) / len(found)
        assert mean == pytest.approx(counts[outcome] / len(RECORDED), abs=0.002)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"verdict": "no signal"}, "no agent can learn"),
        ({"findings": [{"name": "kl_coefficient"}]}, "too few fitted runs had the finding kl_coefficient"),
    ],
)
def test_no_probability_without_runs_of_this_kind(changes: dict[str, Any], reason: str) -> None:
    record = next(record for record in RECORDED if not record["findings"])
    assert forecast_outcomes(record).probabilities
    found = forecast_outcomes(record | changes)
    assert found.line == f"forecast: no probability ({reason})"
