"""`scripts/bench/forecast_runs.py`: labels, measures, and the table of weights from the recorded runs."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "bench"))

import forecast_fit  # noqa: E402
from forecast_jobs import TASKS, list_jobs  # noqa: E402
from forecast_runs import read_records  # noqa: E402

from ippo_cli.forecast.forecast import TABLE, forecast_collapse, read_weights  # noqa: E402


def scores(*means: float, error: float = 0.02) -> dict[int, tuple[float, float]]:
    """Evaluations every four iterations, from iteration 0."""
    return {4 * place: (mean, error) for place, mean in enumerate(means)}


def test_fall_is_two_low_evaluations_in_a_row() -> None:
    """Noise: two standard errors of a difference are 2 * sqrt(2) * 0.02 = 0.057."""
    assert forecast_fit.falls(scores(0.8, 0.8, 0.7, 0.7, 0.8, 0.8), 0) is True
    assert forecast_fit.falls(scores(0.8, 0.8, 0.7, 0.8, 0.7, 0.8), 0) is False, "never twice in a row"
    assert forecast_fit.falls(scores(0.8, 0.76, 0.76, 0.76, 0.76, 0.76), 0) is False, "within noise"
    assert forecast_fit.falls(scores(0.8, 0.74, 0.74, 0.8, 0.8, 0.8), 0) is True
    assert forecast_fit.falls(scores(0.8, 0.8, 0.8, 0.8, 0.8, 0.1, 0.1), 0) is False, "after the horizon"
    assert forecast_fit.falls(scores(0.8, 0.1, 0.1, 0.1, 0.1), 0) is None, "the run ends before the horizon"
    assert forecast_fit.falls(scores(0.1, 0.8, 0.8, 0.8, 0.8, 0.8), 0) is False


def test_measures() -> None:
    labels = np.array([False, False, True, True])
    assert forecast_fit.auc(labels, np.array([0.1, 0.2, 0.3, 0.4])) == 1.0
    assert forecast_fit.auc(labels, np.array([0.1, 0.3, 0.3, 0.4])) == pytest.approx(3.5 / 4)
    assert math.isnan(forecast_fit.auc(labels[:2], np.array([0.1, 0.2])))
    assert forecast_fit.brier(labels, np.full(4, 0.5)) == 0.25
    many = np.tile(labels, 8)
    assert forecast_fit.calibration_error(many, many.astype(float)) == 0.0
    assert forecast_fit.calibration_error(many, np.full(32, 0.7)) == pytest.approx(0.2)


def test_jobs_are_balanced() -> None:
    """Tasks have equally many runs; almost half are broken on purpose; the list does not depend on its length."""
    jobs = list_jobs(240)
    assert {task: sum(job.task == task for job in jobs) for task in TASKS} == dict.fromkeys(TASKS, 20)
    assert {sum(job.task == task and job.arm != "healthy" for job in jobs) for task in TASKS} <= {8, 9, 10, 11}
    assert sum(job.arm != "healthy" for job in jobs) == 116
    assert list_jobs(10) == jobs[:10]


def test_curve_of_a_feature_need_not_be_monotonic() -> None:
    """Falls at both ends of a feature, few in the middle; a missing value gets the intercept."""
    rng = np.random.default_rng(0)
    values = np.full((600, len(forecast_fit.NAMES)), math.nan)
    values[:, 0] = rng.uniform(-1, 1, 600)
    labels = rng.uniform(size=600) < np.where(np.abs(values[:, 0]) > 0.6, 0.9, 0.1)
    names, no = np.full(600, "family"), np.zeros(600, dtype=bool)
    data = forecast_fit.Data(values=values, labels=labels, families=names, runs=np.arange(600), healthy=no, fallen=no)
    model = forecast_fit.fit(data, 3.0)
    asked = np.full((4, len(forecast_fit.NAMES)), math.nan)
    asked[:3, 0] = (-0.95, 0.0, 0.95)
    low, middle, high, missing = model.predict(asked)
    assert min(low, high) > 0.8 > 0.2 > middle
    assert missing == pytest.approx(1 / (1 + math.exp(-model.intercept)))


@pytest.fixture(scope="module")
def records() -> list[forecast_fit.Mapping[str, object]]:
    return read_records()


def test_weights_are_those_of_the_recorded_runs(records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = forecast_fit.build_data(records)
    monkeypatch.setattr(forecast_fit, "TABLE", tmp_path / "weights.json")
    forecast_fit.write_table(forecast_fit.fit_with_chosen_ridge(data), data, records)
    assert json.loads((tmp_path / "weights.json").read_text()) == json.loads(TABLE.read_text())


def test_forecast_of_recorded_runs_beats_the_base_rate(records) -> None:
    """The package's forecast, from rows, is that of the fit."""
    part = records[::20]
    data = forecast_fit.build_data(part)
    chances = []
    for record in part:
        found, rows = forecast_fit.read_scores(record), forecast_fit.read_rows(record)
        for at in sorted(found):
            if forecast_fit.MIN_ROWS <= at <= len(rows) and forecast_fit.falls(found, at) is not None:
                forecast = forecast_collapse(rows[:at], read_weights())
                assert forecast is not None
                chances.append(forecast.probability)
    base = np.full(len(data.labels), data.labels.mean())
    assert forecast_fit.brier(data.labels, np.array(chances)) < forecast_fit.brier(data.labels, base)
