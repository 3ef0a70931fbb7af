"""Credit reports: exact and sampled references, kinds of credit, and refused settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small import small_config, train
from spoken import episode

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.config.critic_reports import (
    CreditReportSettings,
    ValueReference,
    check_credit_report,
    parse_credit_settings,
)
from ippo_cli.config.errors import ConfigError, split_errors
from ippo_cli.evaluation import credit_kinds, credit_report
from ippo_cli.evaluation.credit_report import report_credit
from ippo_cli.evaluation.evaluate_run import EvaluationTask
from ippo_cli.rewards.contract import Reward

KEYS = ("task=signalling", "task.signals=abcd", "algorithm=ppo", "rollout.max_new_tokens=1", "rollout.top_k=3")
SAMPLED = CreditReportSettings(prompts=8, responses=4, continuations=64)
EXACT = CreditReportSettings(prompts=8, responses=4, continuations=4096, reference=ValueReference.exact)
Turn = tuple[str, str, int, int]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs"), *KEYS, "num_iterations=1", "evaluation.every=0")


def report(run: Path, settings: CreditReportSettings) -> tuple[dict[str, Any], dict[Turn, Any]]:
    """The numbers of a report, and its rows by agent, kind, episode and turn."""
    config, _ = small_config(run.parents[1], *KEYS)
    target = report_credit(config, run, "latest", settings, [])
    rows = [json.loads(line) for line in target.with_suffix(".turns.jsonl").read_text().splitlines()]
    by_turn = {(row["agent"], row["kind"], row["episode"], row["turn"]): row for row in rows}
    return json.loads(target.read_text()), by_turn


@pytest.mark.slow
def test_sampled_references_agree_with_exact_ones(run: Path) -> None:
    record, exact = report(run, EXACT)
    _, sampled = report(run, SAMPLED)
    own = [key for key in exact if key[1] == "none"]
    assert len(own) == 64
    distances = torch.tensor([sampled[key]["reference"] - exact[key]["reference"] for key in own])
    errors = torch.tensor([sampled[key]["standard_error"] for key in own])
    assert float(distances.square().sum()) < 1.6 * float(errors.square().sum())
    assert all(exact[key]["standard_error"] == 0 for key in own)
    kinds = {"none", "group", "difference", "counterfactual, 2 alternatives", "critic"}
    assert all(set(by_kind) == kinds for by_kind in record["agents"].values())
    receiver = record["agents"]["receiver"]["none"]["rank_correlation"]
    assert receiver["low"] <= receiver["value"] <= receiver["high"]
    assert receiver["value"] > 0.3


def test_initial_policies_of_adapters_are_bases(tmp_path: Path) -> None:
    keys = ("actor=lora", "actor.model=unused", "actor.adapter=stage_1", "task.agents.high.actor=tiny")
    config, _ = small_config(tmp_path, *normalize_arguments(keys))
    assert config.task.agents["low"].actor.adapter == "stage_1"
    changed = credit_report._without_first_adapters(config)
    assert changed.task.agents["low"].actor == replace(config.task.agents["low"].actor, adapter=None)
    assert changed.task.agents["high"] == config.task.agents["high"]


def test_episodes_without_a_turn_belong_to_no_group(tmp_path: Path) -> None:
    config, _ = small_config(tmp_path)
    both, alone = (("low", 0, "a"), ("high", 0, "b")), (("low", 0, "a"),)
    episodes = [episode(*turns) for turns in (both, both, both, alone, both, alone, alone, alone)]
    scores = [1.0, 1.0, 0.0, 5.0, 1.0, 5.0, 5.0, 5.0]
    session = SimpleNamespace(config=config, episodes=episodes, reward=lambda _: Reward(team=scores))
    credit = credit_kinds._group_advantages(session, "high", 4)[:, 0]
    assert credit[:3].tolist() == pytest.approx([1 / 3, 1 / 3, -2 / 3])
    assert credit[3:].isnan().all(), "without a turn, or alone in the group"


@pytest.mark.slow
def test_group_credit_is_the_score_minus_the_mean_of_the_prompt(run: Path) -> None:
    _, rows = report(run, SAMPLED)
    scores = {key[2]: row["credit"] for key, row in rows.items() if key[:2] == ("receiver", "none")}
    own = {key[2]: row["credit"] for key, row in rows.items() if key[:2] == ("receiver", "group")}
    assert len(own) == 32
    for place, credit in own.items():
        first = place // 4 * 4  # episodes of a prompt have consecutive numbers
        mean = sum(scores[number] for number in range(first, first + 4)) / 4
        assert credit == pytest.approx(scores[place] - mean, abs=1e-6)
    assert len({credit for credit in own.values() if credit != 0}) > 1


@pytest.mark.slow
def test_credit_of_many_alternatives_approaches_exact_credit(run: Path) -> None:
    """The receiver acts last, so its exact credit is its score minus the mean score of its own turns."""
    settings = CreditReportSettings(
        prompts=4, responses=2, continuations=4096, alternatives=200, reference=EXACT.reference
    )
    _, rows = report(run, settings)
    own = [row for key, row in rows.items() if key[:2] == ("receiver", "counterfactual, 200 alternatives")]
    assert len(own) == 8
    for row in own:
        assert row["credit"] == pytest.approx(row["reference"], abs=0.15)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"credit_reference": "best"}, "credit_reference=best is unknown; use monte_carlo or exact"),
        ({"credit_prompts": "1"}, "credit_prompts=1 is not an integer of at least 2"),
    ],
)
def test_refused_settings(own: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_credit_settings(own)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize(
    ("keys", "settings", "message"),
    [
        (["rollout.stop_strings=[x]"], EXACT, "credit_reference=exact does not support rollout.stop_strings"),
        (["reward=function", "reward.function=a.py:f", "reward.whole_batch=true"], SAMPLED, "credit=true scores add"),
    ],
    ids=["stop strings", "whole batch"],
)
def test_refused_runs(keys: list[str], settings: CreditReportSettings, message: str, tmp_path: Path) -> None:
    config, _ = small_config(tmp_path, *keys)
    with pytest.raises(ConfigError) as raised:
        check_credit_report(config, settings)
    assert str(split_errors(raised.value)[0]).startswith(message)


def test_prompts_are_a_random_subset_of_held_out_rows(tmp_path: Path) -> None:
    config, _ = small_config(tmp_path)
    unused: Any = None
    held_out = [{"row": row} for row in range(64)]
    exam = EvaluationTask(config=config, environments=unused, held_out=held_out, reward=unused)
    batch, prompts = credit_report._select_prompts(CreditReportSettings(prompts=16, responses=2), exam)
    assert [example["row"] for example in batch.examples] == prompts
    assert prompts[::2] == prompts[1::2] == sorted(set(prompts))
    assert len(set(prompts)) == 16
    assert {row % 4 for row in prompts} == {0, 1, 2, 3}, "rows at equal distances would all be 0"
