"""Attribution of a gain to agents: mixtures, Shapley values, result files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small import small_config, train

from ippo_cli.config.errors import ConfigError
from ippo_cli.evaluation.attribution import attribute_gain, mixture
from ippo_cli.evaluation.evaluate_run import evaluate_run
from ippo_cli.evaluation.report import render_report

FAST = (
    "evaluation.every=0",
    "actor.warmup_iterations=0",
    "actor.learning_rate=5e-3",
    "num_iterations=2",
    "checkpoint.every=1",
)


def test_mixtures_number_coalitions_by_bits() -> None:
    agents, members = ["a", "b", "c"], ["a", "c"]
    found = [mixture(agents, members, coalition) for coalition in range(4)]
    assert found == [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs"), *FAST)


def record_of(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


@pytest.mark.slow
def test_shares_sum_to_the_gain_and_ends_equal_evaluations(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, _ = small_config(run.parents[1])
    file = attribute_gain(config, run, "latest", "initial", [])
    written = record_of(file)
    (found,) = written["attribution"]
    shares = found["shares"]
    assert list(shares) == ["low", "high"]
    assert found["rows"] == written["rows"]
    gain = found["score"] - found["baseline"]
    assert gain != 0
    assert sum(share["shapley"] for share in shares.values()) == pytest.approx(gain)
    assert shares["low"]["shapley"] == pytest.approx((shares["low"]["alone"] + shares["low"]["removed"]) / 2)
    for checkpoint, team in (("initial", written["teams"][0]), ("latest", written["teams"][-1])):
        plain = record_of(evaluate_run(config, run, checkpoint, []))
        assert team["metrics"].items() <= plain.items()
    assert "agent" in capsys.readouterr().out
    rows = render_report(file, "csv").splitlines()
    assert rows[0] == "metric,agent,shapley,low,high,alone,removed"
    assert [row.split(",")[1] for row in rows[1:]] == ["low", "high"]


@pytest.mark.slow
def test_agent_without_influence_on_the_reward_has_zero(run: Path) -> None:
    reward = run.parents[1] / "only_low.py"
    reward.write_text(
        "def reward(examples, responses):\n    return {'team': [len(text) for text in responses['low']]}\n"
    )
    keys = ["reward=function", f"reward.function={reward}:reward", "task.primary_metric=sampled/score"]
    config, _ = small_config(run.parents[1], *keys)
    (found,) = record_of(attribute_gain(config, run, "2", "1", keys))["attribution"]
    assert found["shares"]["high"] == {"shapley": 0.0, "low": 0.0, "high": 0.0, "alone": 0.0, "removed": 0.0}
    assert found["shares"]["low"]["shapley"] == pytest.approx(found["score"] - found["baseline"])


@pytest.mark.slow
def test_agents_with_different_rewards_have_separate_tables(run: Path) -> None:
    reward = run.parents[1] / "versus.py"
    reward.write_text(
        "def reward(examples, responses):\n"
        "    ahead = [len(low) - len(high) for low, high in zip(responses['low'], responses['high'])]\n"
        "    return {'agent': {'low': ahead, 'high': [-number for number in ahead]}}\n"
    )
    keys = ["reward=function", f"reward.function={reward}:reward", "reward.team_weight=0", "reward.agent_weight=1"]
    config, _ = small_config(run.parents[1], *keys, "task.primary_metric=sampled/score", "rollout.temperature=3.0")
    low, high = record_of(attribute_gain(config, run, "latest", "initial", keys))["attribution"]
    assert (low["metric"], high["metric"]) == ("sampled/low/score", "sampled/high/score")
    for name in ("low", "high"):
        assert low["shares"][name]["shapley"] == pytest.approx(-high["shares"][name]["shapley"])


@pytest.mark.slow
def test_frozen_agents_are_no_members(tmp_path: Path) -> None:
    keys = ("task.agents.high.frozen=true",)
    run = train(tmp_path, *FAST, *keys)
    config, _ = small_config(tmp_path, *keys)
    written = record_of(attribute_gain(config, run, "latest", "initial", []))
    assert [list(found["shares"]) for found in written["attribution"]] == [["low"]]
    assert len(written["teams"]) == 2


@pytest.mark.slow
def test_equal_weights_rejected(run: Path) -> None:
    config, _ = small_config(run.parents[1])
    with pytest.raises(ConfigError, match="initial and initial are equal"):
        attribute_gain(config, run, "0", "initial", [])
