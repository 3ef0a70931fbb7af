"""Training warnings: each rule warns on its fault, and no rule warns on a run that learns."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small import open_trainer, train

from ippo_cli.compose.load import build_config, compose_node, resolve_config
from ippo_cli.config.schema import Config
from ippo_cli.config.text import text_width
from ippo_cli.diagnosis.registry import CONDITIONS
from ippo_cli.reporting.training_warnings import WINDOW, training_warnings
from ippo_cli.runs.metric_names import present_metric_name

Row = dict[str, float]
RECORDED = Path(__file__).parent / "recorded" / "sorting.csv"  # 110 iterations of the embedded task


def recorded() -> list[Row]:
    with RECORDED.open() as file:
        return [{present_metric_name(key): float(value) for key, value in row.items()} for row in csv.DictReader(file)]


@pytest.fixture(scope="module")
def config() -> Config:
    return build_config(resolve_config(compose_node(["critic.mini_batch_size=128", "algorithm.value_clip_range=0.2"])))


def collect_warnings(rows: list[Row], config: Config) -> dict[str, str]:
    """All warnings, with rows added one by one."""
    result: dict[str, str] = {}
    for done in range(1, len(rows) + 1):
        result = training_warnings(rows[:done][-WINDOW:], config) | result
    return result


def changed(rows: list[Row], change: Callable[[int], dict[str, float]], agent: str = "low") -> list[Row]:
    return [row | {f"{agent}/{key}": value for key, value in change(int(row["iteration"])).items()} for row in rows]


def test_no_warning_for_a_run_that_learns(config: Config) -> None:
    assert len(recorded()) == 110
    assert collect_warnings(recorded(), config) == {}
    for start in (10, 49, 60):  # resumed, with and without the rows before
        assert collect_warnings(recorded()[start:], config) == {}


def test_finished_row_does_not_count_as_full_context(config: Config) -> None:
    cut = changed(recorded(), lambda _: {"rollout/truncated_fraction": 0.992, "rollout/response_length": 7.95})
    assert "was truncated at rollout.max_new_tokens=8" in collect_warnings(cut[:1], config)["truncated"]


def test_value_error_accounts_for_huber_loss(config: Config) -> None:
    for delta, loss, expected in ((10.0, 950.0, "off by 1e+02"), (10.0, 11.0, "off by 4.7"), (0.1, 0.4, "off by 4")):
        huber = replace(config, algorithm=replace(config.algorithm, huber_delta=delta))
        found = collect_warnings(changed(recorded(), lambda _, loss=loss: {"value/loss": loss})[:3], huber)
        assert expected in found["far_values"]


def test_environment_truncation_does_not_warn() -> None:
    world = build_config(resolve_config(compose_node(["task=gymnasium", "task.env_id=FrozenLake-v1"])))
    rows = [{"iteration": 1.0, "player/rollout/truncated_fraction": 1.0}]
    assert "truncated" not in training_warnings(rows, world)


CASES: dict[str, tuple[str, int, Callable[[int], dict[str, float]], str]] = {
    "cut from the start": (
        "truncated",
        1,
        lambda _: {"rollout/truncated_fraction": 1.0},
        "every response of low was truncated at rollout.max_new_tokens=8",
    ),
    "cut from some day on": ("truncated", 70, lambda n: {"rollout/truncated_fraction": float(n >= 70)}, "low"),
    "cut by the context": (
        "truncated",
        1,
        lambda _: {"rollout/truncated_fraction": 1.0, "rollout/response_length": 5.5},
        "every response of low was truncated at a full context, before rollout.max_new_tokens=8",
    ),
    "another policy than the sampler's": (
        "sampler_mismatch",
        1,
        lambda _: {"policy/ratio_first_step_deviation": 0.4},
        "give the same tokens other probabilities, before any step",
    ),
    "no token in the range": (
        "masked_tokens",
        1,
        lambda _: {"policy/clip_fraction": 1.0, "policy/grad_norm": 0.0},
        "every token of low is masked or clipped",
    ),
    "one score for all": (
        "equal_scores",
        3,
        lambda _: {"score/std": 0.0, "score/mean": 0.0},
        "all compared responses of low have equal scores in iterations 1 to 3",
    ),
    "groups of equal scores": (
        "equal_scores",
        3,
        lambda _: {"targets/zero_advantage_fraction": 1.0},
        "iterations 1 to 3",
    ),
    "collapsed": (
        "equal_scores",
        49,
        lambda n: {"score/std": 0.0, "score/mean": 0.75} if n >= 40 else {},
        "iterations 40 to 49",
    ),
    "no better": ("no_progress", 50, lambda n: {"score/mean": 0.5 + 0.002 * (-1) ** n}, "(0.500 -> 0.500)"),
    "worse": ("no_progress", 50, lambda n: {"score/mean": 0.5 - 0.002 * n}, "the score of low has not increased in 50"),
    "unlearnt": (
        "fell",
        72,
        lambda n: {"score/mean": 0.3 + 0.01 * n if n < 71 else 0.2, "score/std": 0.2},
        "fell from 0.955 to 0.674",
    ),
    "values that cannot be reached": (
        "far_values",
        3,
        lambda _: {"value/loss": 11.0},
        "off by 4.7 but change by at most algorithm.value_clip_range=0.2",
    ),
    "a critic that knows nothing": (
        "explained_variance",
        50,
        lambda n: {"value/explained_variance": 0.001 * (n % 3)},
        "explained_variance of low is 0.00 after 50 iterations",
    ),
    "a critic worse than none": ("explained_variance", 20, lambda _: {"value/explained_variance": -0.5}, "is -0.50"),
    "a few failures": ("failing_rewards", 5, lambda n: {"score/failed_fraction": 0.03 * (n == 5)}, "3.0% of the resp"),
    "a part without numbers": ("empty_parts", 3, lambda _: {"score/part/exact": math.nan}, "part exact was not a"),
    "no room for another turn": (
        "overflow",
        6,
        lambda n: {"rollout/overflow_fraction": 0.06 * (n == 6)},
        "6% of episodes",
    ),
    "turns that are cut": (
        "cut_turns",
        3,
        lambda _: {"rollout/cut_fraction": 0.6},
        "60% of the turns of low are trunc",
    ),
    "never asked": ("silent", 4, lambda n: {"rollout/response_length": float(n < 4)}, "low generated no tokens"),
    "steps left out": ("skipped_steps", 7, lambda n: {"value/skipped_steps": float(n == 7)}, "steps of low were skip"),
}


@pytest.mark.parametrize("case", CASES)
def test_rule_warns_as_soon_as_its_fault_shows(case: str, config: Config) -> None:
    rule, when, change, words = CASES[case]
    rows = recorded()
    if rule == "empty_parts":
        rows = changed(rows, change, "high")
    rows = changed(rows, change)
    assert collect_warnings(rows[: when - 1], config) == {}
    found = collect_warnings(rows[:when], config)
    assert list(found) == [rule]
    assert words in found[rule]
    assert text_width(f"warning: {found[rule]}") <= 160


def test_rows_without_values_are_ignored(config: Config) -> None:
    """An agent that does not act in every buffer, and a critic whose agents sometimes have equal scores."""
    gaps = changed(recorded(), lambda n: {"score/mean": math.nan, "score/std": math.nan} if n % 7 == 0 else {})
    assert collect_warnings(gaps, config) == {}
    worse = changed(gaps, lambda n: {"score/mean": 0.5 - 0.002 * n} if n % 7 else {})
    assert list(collect_warnings(worse[:50], config)) == ["no_progress"]
    unexplained = changed(recorded(), lambda n: {"value/explained_variance": math.nan if n % 7 == 0 else -0.5})
    assert "nan" not in collect_warnings(unexplained, config)["explained_variance"]


def test_last_only_context_overflow_recommends_longer_prompts() -> None:
    lake = build_config(resolve_config(compose_node(["task=gymnasium", "task.env_id=FrozenLake-v1"])))
    rows = [{"iteration": 1.0, "player/rollout/overflow_fraction": 0.5}]
    assert "increase rollout.max_prompt_tokens" in training_warnings(rows, lake)["overflow"]


def test_score_may_fall_with_opponents() -> None:
    rows = [
        row | {"player/score/mean": 0.9 if row["iteration"] < 20 else 0.1, "player/score/std": 0.2}
        for row in recorded()[:25]
    ]
    alone = build_config(resolve_config(compose_node(["task=gymnasium", "task.env_id=FrozenLake-v1"])))
    with_partners = replace(alone, team=replace(alone.team, opponent_pool=replace(alone.team.opponent_pool, every=8)))
    assert "fell from 0.900" in training_warnings(rows, alone)["fell"]
    assert "fell" not in training_warnings(rows, with_partners)


def test_every_rule_is_tested() -> None:
    elsewhere = {"collapse_risk"}  # tests/forecast: it reads a metric of the run, not of an agent
    rules = {condition.name for condition in CONDITIONS if condition.warn}
    assert {rule for rule, *_ in CASES.values()} == rules - elsewhere


@pytest.mark.parametrize(
    "change",
    [
        lambda n: {"score/std": 0.0, "score/mean": 1.0} if n > 60 else {},  # all responses are correct in the end
        lambda n: {"value/explained_variance": -0.5} if n < 11 else {},  # typical for a new critic
        lambda n: {"rollout/truncated_fraction": 0.9},
        lambda n: {"rollout/truncated_fraction": 1.0, "rollout/cut_fraction": 0.4, "rollout/overflow_fraction": 0.05},
        lambda n: {"rollout/cut_fraction": 0.6} if n % 3 else {},
        lambda n: {"score/part/exact": math.nan} if n % 2 else {},
    ],
)
def test_normal_runs_do_not_warn(change: Callable[[int], dict[str, float]], config: Config) -> None:
    assert collect_warnings(changed(changed(recorded(), change), change, "high"), config) == {}


def test_turn_values_may_explain_nothing_but_not_be_negative() -> None:
    turns = build_config(resolve_config(compose_node(["algorithm=comlrl_iac"])))
    assert collect_warnings(changed(recorded(), lambda _: {"value/explained_variance": 0.0}), turns) == {}
    assert list(collect_warnings(changed(recorded(), lambda _: {"value/explained_variance": -0.5}), turns)) == [
        "explained_variance"
    ]


def test_probe_with_fixed_length_does_not_warn() -> None:
    probe = build_config(resolve_config(compose_node(["task=probe_constant"])))
    rows = [
        {key.replace("low/", "first/").replace("high/", "second/"): value for key, value in row.items()}
        for row in changed(recorded(), lambda _: {"rollout/truncated_fraction": 1.0})
    ]
    assert collect_warnings(rows, probe) == {}


def warnings(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())["warnings"]


def test_warning_is_printed_once_also_after_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from small import small_config

    from ippo_cli.training.process import run_training

    cutting = ("rollout.max_new_tokens=1", "task.length=2", "num_iterations=2", "evaluation.every=0")
    folder = train(tmp_path, *cutting, "algorithm.critic_warmup=2")
    output = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")]
    assert [line for line in output if "algorithm.critic_warmup=2 covers all iterations (2)" in line] == output[:1]
    assert sum("was truncated at rollout.max_new_tokens=1" in line for line in output) == 1
    assert [f"warning: {text}" for text in warnings(folder).values()] == output
    config, _ = small_config(tmp_path, *cutting, "algorithm.critic_warmup=2", "num_iterations=4")
    run_training(config, folder, resumed=True)
    assert "warning: " not in capsys.readouterr().out
    assert [f"warning: {text}" for text in warnings(folder).values()] == output


def test_resumed_run_uses_earlier_iterations(tmp_path: Path) -> None:
    with open_trainer(tmp_path, "num_iterations=2", "evaluation.every=0") as trainer:
        assert list(trainer.recent_rows) == []
        trainer.train()
        assert [row["iteration"] for row in trainer.recent_rows] == [1, 2]
        kept = trainer.run.read_last_rows(1)
    assert [row["iteration"] for row in kept] == [2]
    assert kept[0]["low/score/mean"] == trainer.recent_rows[-1]["low/score/mean"]
