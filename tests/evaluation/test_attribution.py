"""Attribution of a gain to agents: mixtures, Shapley values, result files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small import small_config, train

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.config.errors import ConfigError
from ippo_cli.evaluation.attribution import attribute, attribute_gain, mixture
from ippo_cli.evaluation.evaluate_run import evaluate_run
from ippo_cli.evaluation.mixed_teams import score_metrics, stack_agent_scores
from ippo_cli.evaluation.report import render_report
from ippo_cli.training.evaluate import Evaluation

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


def evaluation(generations: int = 1, **scores: list[float]) -> Evaluation:
    values = {f"sampled/{name}/score": torch.tensor(own, dtype=torch.float64) for name, own in scores.items()}
    values["sampled/score"] = torch.stack(list(values.values())).nanmean(dim=0)
    return Evaluation(
        metrics={}, samples=[], episode_values=values, generations={"sampled": generations}, failed_counts={}
    )


def test_agent_without_a_turn_has_a_score_of_0(tmp_path: Path) -> None:
    nan = float("nan")
    untrained = evaluation(low=[0.0] * 4, high=[nan] * 4)
    calling = evaluation(low=[1.0, 2.0, 3.0, 4.0], high=[1.0, nan, 3.0, 0.5])
    agents, pairings = ["low", "high"], [(0, 0), (1, 0), (0, 1), (1, 1)]
    found = dict(zip(pairings, [untrained, calling] * 2, strict=True))
    config, _ = small_config(tmp_path, "task.primary_metric=sampled/score")
    low, high = attribute(agents, agents, pairings, found, config)
    assert (low.metric, high.metric) == ("sampled/low/score", "sampled/high/score")
    assert low.rows == high.rows == 4
    assert low.shares["low"].shapley == pytest.approx(2.5)
    assert (high.baseline, high.score) == (0.0, pytest.approx(4.5 / 4))
    assert high.shares["low"].shapley == pytest.approx(4.5 / 4), "it calls"
    assert high.shares["high"].shapley == 0.0


def test_agent_without_a_turn_in_one_episode_of_a_row_has_a_score_of_0_in_it() -> None:
    nan = float("nan")
    team = evaluation(generations=2, main=[1.0, 0.0, 1.0, nan], helper=[1.0, nan, nan, nan])
    scores = stack_agent_scores(["sampled/main/score", "sampled/helper/score"], [team])
    assert scores.tolist() == [[[0.5, 1.0], [0.5, 0.0]]], "the failed fourth episode is excluded"
    assert stack_agent_scores(["sampled/score"], [team]).tolist() == [[[0.5, 1.0]]]


def test_equal_scores_are_recognized_in_episodes_not_in_their_means() -> None:
    nan = float("nan")
    common = evaluation(generations=2, main=[1.0, 0.0, 1.0, 1.0], helper=[1.0, nan, nan, 1.0])
    assert set(score_metrics(["main", "helper"], [common], "sampled/score").values()) == {"sampled/score"}
    individual = evaluation(main=[1.0, nan], helper=[nan, 1.0], other=[1.0, 0.5])
    assert len(set(score_metrics(["main", "helper", "other"], [individual], "sampled/score").values())) == 3


def test_pass_at_k_is_attributed_by_rows(tmp_path: Path) -> None:
    teams = [evaluation(generations=2, low=own, high=own) for own in ([0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 1.0, 1.0])]
    teams = [replace(team, metrics={"sampled/score/pass@2": 0.0}) for team in teams]
    config, _ = small_config(tmp_path, "task.primary_metric=sampled/score/pass@2", "evaluation.num_generations=2")
    (found,) = attribute(
        ["low", "high"], ["low"], [(0, 0), (1, 0)], dict(zip([(0, 0), (1, 0)], teams, strict=True)), config
    )
    assert (found.metric, found.score, found.rows) == ("sampled/score/pass@2", 1.0, 2)


def test_rows_without_any_score_in_one_mixture_are_excluded(tmp_path: Path) -> None:
    nan = float("nan")
    mixtures = [evaluation(low=[0.0, nan], high=[1.0, nan]), evaluation(low=[1.0, 7.0], high=[2.0, 8.0])]
    config, _ = small_config(tmp_path, "task.primary_metric=sampled/score")
    found = dict(zip([(0, 0), (1, 0)], mixtures, strict=True))
    low, high = attribute(["low", "high"], ["low"], list(found), found, config)
    assert (low.rows, high.rows) == (1, 1)
    assert low.shares["low"].shapley == high.shares["low"].shapley == pytest.approx(1.0)


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
def test_agent_with_empty_responses_has_zero(tmp_path: Path) -> None:
    reward = tmp_path / "lengths.py"
    reward.write_text(
        "def reward(examples, responses):\n"
        "    team = [sum(map(len, texts)) + 10.0 * bool(texts[1]) for texts in zip(*responses.values())]\n"
        "    return {'team': team, 'parts': {'written': [float(bool(text)) for text in responses['high']]}}\n"
    )
    keys = normalize_arguments(
        [
            "+task.agents={third:{template:'{letters}|',answer:'{low}'}}",
            "reward=function",
            f"reward.function={reward}:reward",
            "task.primary_metric=sampled/score",
            "task.agents.high.warm_start_answer=''",
            "actor.warm_start_steps=30",
            "task.agents.high.rollout.top_k=1",  # its likeliest response is the end
            "task.agents.high.actor.learning_rate=1e-5",  # and stays so
        ]
    )
    run = train(tmp_path, *FAST, *keys)
    config, _ = small_config(tmp_path, *FAST, *keys)
    written = record_of(attribute_gain(config, run, "latest", "initial", []))
    (found,) = written["attribution"]
    assert list(found["shares"]) == ["low", "high", "third"]
    assert {team["metrics"]["sampled/written"] for team in written["teams"]} == {0.0}
    assert found["shares"]["high"] == {"shapley": 0.0, "low": 0.0, "high": 0.0, "alone": 0.0, "removed": 0.0}
    gain = found["score"] - found["baseline"]
    assert gain != 0
    assert found["shares"]["low"]["shapley"] + found["shares"]["third"]["shapley"] == pytest.approx(gain)


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
