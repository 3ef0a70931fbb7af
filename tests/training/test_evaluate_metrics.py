"""Metrics of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small import small_config
from spoken import episode

from ippo_cli.evaluation.estimates import confidence_intervals, paired_comparison, row_values
from ippo_cli.formulas.estimates import wilson
from ippo_cli.rewards.contract import Reward
from ippo_cli.tasks.eval_rows import select_eval_rows
from ippo_cli.tasks.task import Task
from ippo_cli.training.evaluate import evaluate, evaluation_turn_means, row_means, values_by_episode
from ippo_cli.types import Batch, Episode


def four_episodes() -> list[Episode]:
    """One turn each; the last one is truncated."""
    return [episode(("solo", 0, "a"), unfinished=frozenset({"solo"} if number == 3 else ())) for number in range(4)]


def test_part_mean_uses_only_applicable_rows() -> None:
    nothing = math.nan
    given = Reward(
        team=[1.0, 0.0, 1.0, nothing],
        agent={},
        parts={"exact": [1.0, nothing, nothing, nothing], "never": [nothing] * 4},
        valid=None,
    )
    numbers = torch.tensor(given.team)
    found = row_means(values_by_episode(given, {"solo": numbers}, numbers.isnan(), four_episodes()), 1)
    assert found["exact"] == 1.0
    assert math.isnan(found["never"])
    assert found["score"] == found["solo/score"] == 2 / 3
    assert (found["solo/response_length"], found["solo/truncated_fraction"]) == (0.0, 0.25)


def test_episodes_without_turns_are_not_truncated() -> None:
    played = [episode(("low", 0, "a"), terminated=False, truncation="environment") for _ in range(3)]
    played.append(episode(("high", 0, "a"), ("low", 1, "b")))
    numbers = {name: torch.zeros(4) for name in ("low", "high", "mute")}
    found = row_means(values_by_episode(Reward(team=[0.0] * 4), numbers, torch.zeros(4).bool(), played), 1)
    assert (found["low/truncated_fraction"], found["high/truncated_fraction"]) == (0.75, 0.0)
    assert math.isnan(found["mute/truncated_fraction"])


def test_turn_means_use_episodes_with_that_turn() -> None:
    played = [
        episode(("low", 0, "", "", True, 4), ("high", 1, ""), ("low", 2, "", "", False, 2)),
        episode(("low", 0, "", "", False, 1)),
        episode(("low", 0, "", "", True, 1), ("low", 1, "", "", True, 6)),
    ]
    scores = torch.tensor([[0.5, 1.0], [0.25, 9.0], [9.0, 9.0]])
    assert evaluation_turn_means(played, "low", scores, torch.tensor([True, True, False]), 3) == pytest.approx(
        {
            "response_length/turn/1": 2.0,
            "cut_fraction/turn/1": 1 / 3,
            "score/turn/1": 0.375,
            "response_length/turn/2": 4.0,
            "cut_fraction/turn/2": 0.5,
            "score/turn/2": 1.0,
            "response_length/turn/3": math.nan,
            "cut_fraction/turn/3": math.nan,
            "score/turn/3": math.nan,
        },
        nan_ok=True,
    )


def test_samples_of_a_row_are_consecutive_and_reproducible(tmp_path: Path) -> None:
    held_out = [{"wanted": row % 2} for row in range(6)]
    config, _ = small_config(tmp_path, "evaluation.num_generations=4", "evaluation.size=3")
    asked: dict[bool, Batch] = {}

    def play(batch: Batch, greedy: bool) -> list[Episode]:
        asked[greedy] = batch
        return [
            replace(episode(("low", 0, "a"), ("high", 0, "b")), example=example, index=int(index))
            for example, index in zip(batch.examples, batch.index, strict=True)
        ]

    def reward(episodes: Sequence[Episode]) -> Reward:
        """For odd rows only the first sample is correct; for even rows none."""
        right = [float(one.index < 6 and one.example["wanted"]) for one in episodes]
        return Reward(team=right, parts={"right": right, "near": [0.5] * len(right)})

    rows = select_eval_rows(6, config.evaluation)
    found = evaluate(play, Task(train=(), held_out=held_out), reward, config, keep_all_samples=True)
    assert asked[True].index.tolist() == rows
    assert asked[False].index.tolist() == [row + 6 * sample for row in rows for sample in range(4)]
    odd = sum(row % 2 for row in rows) / 3
    assert 0 < odd < 1
    assert found.metrics["greedy/right"] == pytest.approx(odd)
    assert found.metrics["sampled/right"] == pytest.approx(odd / 4)
    assert found.metrics["sampled/right/pass@2"] == pytest.approx(odd / 2)
    assert found.metrics["sampled/score/pass@4"] == pytest.approx(odd)
    assert not [key for key in found.metrics if key.startswith(("greedy/right/", "sampled/near/"))]
    assert len(found.samples) == 15
    assert found.samples[0]["parts"] == {"right": float(rows[0] % 2), "near": 0.5}
    by_prompt = row_values(found)
    assert by_prompt["sampled/right"].tolist() == [row % 2 / 4 for row in rows]
    assert by_prompt["sampled/right/pass@2"].tolist() == [row % 2 / 2 for row in rows]
    certain = confidence_intervals(found)
    assert certain["sampled/right"]["by"] == certain["sampled/right/pass@4"]["by"] == "wilson"
    assert certain["greedy/low/response_length"] == {"low": 0.0, "high": 0.0, "by": "t"}, "no share, though 0"
    assert certain["sampled/near"] == {"low": 0.5, "high": 0.5, "by": "t"}
    assert certain["greedy/right"]["low"] < odd < certain["greedy/right"]["high"]


def test_rows_with_failed_samples_have_equal_weight(tmp_path: Path) -> None:
    """Every row is always or never correct; of the correct ones, three of four samples fail."""
    config, _ = small_config(tmp_path, "evaluation.num_generations=4", "reward.failure_budget=0.5")

    def play(batch: Batch, greedy: bool) -> list[Episode]:
        return [
            replace(episode(("low", 0, "a"), ("high", 0, "b")), example=example, index=int(index))
            for example, index in zip(batch.examples, batch.index, strict=True)
        ]

    def reward(episodes: Sequence[Episode]) -> Reward:
        failed = [one.example["right"] and one.index >= 40 for one in episodes]
        return Reward(
            team=[math.nan if bad else one.example["right"] for bad, one in zip(failed, episodes, strict=True)]
        )

    held_out = [{"right": row % 2 == 0} for row in range(40)]
    found = evaluate(play, Task(train=(), held_out=held_out), reward, config)
    certain = confidence_intervals(found)
    assert found.failed_counts == {"sampled": 60, "greedy": 0}
    assert found.metrics["sampled/failed_fraction"] == 60 / 160
    for key in ("sampled/score", "sampled/low/score"):
        assert found.metrics[key] == pytest.approx(0.5), "and not 20 of the 100 samples that are there"
        assert (certain[key]["low"], certain[key]["high"]) == pytest.approx(wilson(0.5, 40))
    assert found.metrics["sampled/score/pass@2"] == 0.0, "rows with one sample left have none"


def test_evaluations_are_compared_by_common_rows() -> None:
    one = torch.tensor([1.0, 1.0, 1.0, 0.0, math.nan])
    other = torch.tensor([0.0, 1.0, 0.0, 0.0, 1.0])
    found = paired_comparison(one, other, seed=0)
    assert (found["one"], found["other"], found["difference"]) == (0.75, 0.25, 0.5)
    assert (found["rows"], found["higher"], found["lower"], found["p"]) == (4, 2, 0, 0.5)
    assert found["low"] < 0.5 < found["high"]
