"""The forecast during training: logged values, warning, stop and resume."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from small import new_run, rows, train, train_on_two_ranks, train_with_stop

import ippo_cli
from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.diagnosis.finding import Finding, Observations
from ippo_cli.diagnosis.registry import BY_NAME
from ippo_cli.forecast.features import MIN_ROWS, Value
from ippo_cli.forecast.forecast import RISK, Curve, Weights, apply_weights, forecast_collapse
from ippo_cli.reporting.console_format import format_risk
from ippo_cli.training.process import run_training

FEW = ("evaluation.every=0", "checkpoint.every=0", "checkpoint.best=false", "task.eval_size=4")
LONG = (*FEW, "num_iterations=7")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("whole"), *LONG)


def test_logged_value_is_that_of_the_rows(whole: Path) -> None:
    """The live value equals the one that is computed from `metrics.jsonl` later."""
    logged = rows(whole)
    assert [RISK in row for row in logged] == [int(row["iteration"]) >= MIN_ROWS for row in logged]
    for place, row in enumerate(logged):
        found = forecast_collapse(logged[: place + 1])
        assert (found and found.probability) == row.get(RISK)
    assert all(0 < row[RISK] < 1 for row in logged if RISK in row)


def test_resumed_run_logs_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Path) -> None:
    function = "ippo_cli.training.experience.process_scores"
    assert rows(train_with_stop(tmp_path, monkeypatch, function, 6, *LONG)) == rows(whole)


def test_run_ends_at_a_risk_and_a_resume_continues_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], whole: Path
) -> None:
    stop = "evaluation.stop_at_risk=1e-9"
    folder = train(tmp_path, *LONG, stop)
    assert f"ended by {stop.replace('1e-9', '1e-09')}: {RISK} is" in capsys.readouterr().out
    assert [int(row["iteration"]) for row in rows(folder)] == list(range(MIN_ROWS + 1))
    assert json.loads((folder / "run.json").read_text())["state"] == "done"
    assert [path.name for path in (folder / "checkpoints").glob("step_*")] == [f"step_{MIN_ROWS:08d}"]
    config, _ = new_run(tmp_path / "other", *LONG, stop)
    run_training(config, folder, resumed=True)  # the same limit: nothing is left to train
    assert len(rows(folder)) == MIN_ROWS + 1
    config, _ = new_run(tmp_path / "another", *LONG)
    run_training(config, folder, resumed=True)
    assert rows(folder) == rows(whole)


@pytest.mark.slow
def test_iterations_that_are_executed_again_have_the_same_risk(tmp_path: Path) -> None:
    """The copy of a run begins at a checkpoint, and has the rows before it."""
    folder = train(tmp_path, *LONG, "checkpoint.every=5")
    assert RISK in rows(folder)[-1]
    assert ippo_cli.Run(folder).verify(count=2)["result"] == "verified"


@pytest.mark.slow
def test_two_ranks_end_together(tmp_path: Path) -> None:
    folder = train_on_two_ranks(tmp_path, *LONG, "evaluation.stop_at_risk=1e-9")
    assert int(rows(folder)[-1]["iteration"]) == MIN_ROWS
    assert json.loads((folder / "run.json").read_text())["state"] == "done"


def test_warning_names_the_features() -> None:
    config = load_config(["task=sorting_solo", "algorithm=ppo"])
    known = [
        {
            "iteration": float(n),
            "solo/score/mean": 0.8 - 0.02 * n,
            "solo/score/std": 0.1,
            "solo/policy/entropy": max(1.0 - 0.06 * n, 0.01),
            "solo/policy/approx_kl": 1.0,
            "solo/policy/clip_fraction": 0.7,
            "solo/policy/ratio_max_deviation": 300.0,
        }
        for n in range(1, 21)
    ]
    warn = BY_NAME["collapse_risk"].warn
    assert warn is not None
    assert warn(Observations(config=config, rows=[*known[:-1], known[-1] | {RISK: 0.01}])) is None
    finding = warn(Observations(config=config, rows=[*known[:-1], known[-1] | {RISK: 0.97}]))
    assert isinstance(finding, Finding)
    found = forecast_collapse(known)
    assert found is not None
    first = found.contributions[0]
    assert first.log_odds > 0.2
    assert f"{first.feature} of solo" in finding.line
    assert "(risk 0.97)" in finding.line
    assert len(f"warning: {finding.line}") <= 160
    config.evaluation.stop_at_risk = 0.3
    assert isinstance(warn(Observations(config=config, rows=[*known[:-1], known[-1] | {RISK: 0.3}])), Finding)


def test_stop_without_policies_that_change_is_refused() -> None:
    config = load_config(["mode=critic", "evaluation.stop_at_risk=0.5"])
    with pytest.raises(ConfigError, match=r"evaluation.stop_at_risk=0.5 has no effect with mode=critic"):
        check_config(config, 1)
    for limit in ("0", "1.5"):
        with pytest.raises(ConfigError, match=r"evaluation\.stop_at_risk"):
            check_config(load_config([f"evaluation.stop_at_risk={limit}"]), 1)


def test_curves_are_linear_between_knots_and_constant_beyond() -> None:
    table = Weights(20, 0.3, -1.0, {"low_entropy": Curve((0.0, 0.5, 1.0), (-1.0, 0.0, 2.0))})
    odds = {-3.0: -1.0, 0.0: -1.0, 0.25: -0.5, 0.5: 0.0, 0.75: 1.0, 1.0: 2.0, 9.0: 2.0}
    for number, added in odds.items():
        found = apply_weights({"low_entropy": Value(number, "solo")}, table)
        assert found.contributions[0].log_odds == pytest.approx(added)
        assert found.probability == pytest.approx(1 / (1 + math.exp(1 - added)))
    assert apply_weights({}, table).probability == pytest.approx(1 / (1 + math.e)), "missing: nothing is added"


def test_console_displays_a_risk_that_is_not_low() -> None:
    assert format_risk({RISK: 0.621}) == ["risk 0.62"]
    assert format_risk({RISK: 0.29}) == format_risk({}) == []
