"""Critic reports: exact and sampled references, critics with known values, chosen states, refused runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from small import small_config, train

from ippo_cli.agents.agent import Agent
from ippo_cli.config.critic_reports import (
    CriticReportSettings,
    ValueReference,
    check_critic_report,
    parse_report_settings,
)
from ippo_cli.config.errors import ConfigError
from ippo_cli.evaluation import critic_report
from ippo_cli.evaluation.critic_report import describe_returns, report_critic, states_file
from ippo_cli.evaluation.critic_states import choose_states
from ippo_cli.evaluation.evaluate_run import EvaluationTask
from ippo_cli.types import Rollout

KEYS = (
    "task=probe_conditional",
    "algorithm=ppo",
    "rollout.max_new_tokens=3",
    "rollout.top_k=2",
    "num_iterations=1",
    "actor.warm_start_steps=12",
    "evaluation.every=0",
    "task.eval_size=16",
)
SAMPLED = CriticReportSettings(states=96, responses=4, continuations=32)
EXACT = CriticReportSettings(states=96, responses=4, continuations=4096, reference=ValueReference.exact)
Key = tuple[str, int, int, int]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("runs"), *KEYS, "critic=separate")


def report(run: Path, settings: CriticReportSettings, *keys: str) -> tuple[dict[str, Any], dict[Key, Any]]:
    """The numbers of a report, and its states by agent, episode, turn and position."""
    config, _ = small_config(run.parents[1], *KEYS, "critic=separate", *keys)
    target = report_critic(config, run, "latest", settings, keys)
    rows = [json.loads(line) for line in states_file(target).read_text().splitlines()]
    states = {(row["agent"], row["episode"], row["turn"], row["position"]): row for row in rows}
    return json.loads(target.read_text()), states


def give_values(monkeypatch: pytest.MonkeyPatch, known: Mapping[Key, float]) -> None:
    """Replace the values of all critics."""

    def values(agent: Agent, rollout: Rollout, view: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        found = torch.zeros_like(rollout.logprobs)
        for (name, episode, turn, position), value in known.items():
            if name == agent.name and episode < len(found):
                column = int((rollout.turn[episode] == turn).long().argmax()) + position
                found[episode, min(column, found.shape[1] - 1)] = value
        return found, found.new_zeros(len(found))

    monkeypatch.setattr(Agent, "values", values)


def numbers(record: Mapping[str, Any], agent: str) -> dict[str, float]:
    return {
        key: entry["value"]
        for key, entry in record["agents"][agent]["groups"][agent].items()
        if isinstance(entry, dict)
    }


@pytest.mark.slow
def test_sampled_references_agree_with_exact_ones(run: Path) -> None:
    """Distances of exact and sampled references are as large as their sampling errors say."""
    _, exact = report(run, EXACT)
    record, sampled = report(run, SAMPLED)
    assert exact.keys() <= sampled.keys()
    assert len(exact) > 50
    distances = [(sampled[key]["reference"] - exact[key]["reference"]) for key in exact]
    errors = [sampled[key]["standard_error"] for key in exact]
    assert sum(distance**2 for distance in distances) < 1.6 * sum(error**2 for error in errors)
    assert sum(distance**2 for distance in distances) > 0.5 * sum(error**2 for error in errors)
    assert all(exact[key]["standard_error"] == 0 for key in exact)
    assert {key: row["value"] for key, row in exact.items()} == {key: sampled[key]["value"] for key in exact}
    assert all(entry["tokens"] > 0 for entry in record["agents"].values())


@pytest.mark.slow
def test_exact_critic_scores_one_and_shuffled_critic_nothing(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, exact = report(run, EXACT)
    known = {key: row["reference"] for key, row in exact.items()}
    give_values(monkeypatch, known)
    record, _ = report(run, EXACT)
    for agent in record["agents"]:
        found = numbers(record, agent)
        for name in ("explained_variance", "rank_correlation", "rank_correlation_within", "pair_accuracy", "slope"):
            assert found[name] == pytest.approx(1.0, abs=1e-4), name
        assert found["bias"] == pytest.approx(0.0, abs=1e-5)
    record, _ = report(run, SAMPLED)
    for agent in record["agents"]:
        found = numbers(record, agent)
        assert found["explained_variance_corrected"] > found["explained_variance"]
        assert found["explained_variance_corrected"] == pytest.approx(1.0, abs=0.2)
    ranks = []
    for seed in range(4):
        source = torch.Generator().manual_seed(seed)
        for agent in record["agents"]:
            own = [key for key in known if key[0] == agent]
            order = torch.randperm(len(own), generator=source).tolist()
            give_values(monkeypatch, {key: known[own[place]] for key, place in zip(own, order, strict=True)})
            found = numbers(report(run, EXACT)[0], agent)
            ranks.append(found["rank_correlation"])
            assert found["pair_accuracy"] < 0.85
    assert sum(ranks) / len(ranks) == pytest.approx(0.0, abs=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        ("critic=value_head",),
        ("critic=centralized", "algorithm.kl.reward.coef=0.1"),
        ("critic=separate", "algorithm.gamma=0.5", "algorithm.truncation=bootstrap"),
        ("critic=separate", "task=ladder", "task.train_size=16", "task.eval_size=4"),
        ("critic=separate", "task=ladder", "task.train_size=16", "task.eval_size=4", "algorithm=turn_ppo"),
    ],
    ids=["value head", "centralized with KL", "discounted", "several turns", "actions are turns"],
)
def test_kinds_of_critics_and_targets(keys: tuple[str, ...], tmp_path: Path) -> None:
    base = [key for key in KEYS if "task=ladder" not in keys or not key.startswith(("task=", "rollout.top_k"))]
    folder = train(tmp_path, *base, *keys)
    config, _ = small_config(tmp_path, *base, *keys)
    settings = CriticReportSettings(states=12, responses=2, continuations=4)
    target = report_critic(config, folder, "latest", settings, [])
    record = json.loads(target.read_text())
    for agent in record["agents"].values():
        assert agent["states"] >= 4
        assert agent["tokens"] > 0
    rows = [json.loads(line) for line in states_file(target).read_text().splitlines()]
    if "task=ladder" in keys:
        assert len({row["turn"] for row in rows}) > 1
        assert any(row["position"] for row in rows) == ("algorithm=turn_ppo" not in keys)
    if "algorithm.gamma=0.5" in keys:
        assert record["critic"]["compared_with"].endswith("discounted by gamma=0.5")
    if "algorithm.kl.reward.coef=0.1" in keys:
        assert "the KL term of the reward (k1)" in record["critic"]["compared_with"]


BROKEN: list[tuple[tuple[str, ...], str]] = [
    (("algorithm=grpo", "rollout.num_generations=4"), "no agent has one"),
    (("reward.processor=[zscore]",), "standardises scores by moments"),
    (("reward.credit_assignment=leave_out",), "subtracts a baseline"),
    (("algorithm=turn_ppo", "algorithm.turn_value=mean"), "turn_value=mean the value of a turn depends on its tokens"),
]


@pytest.mark.parametrize(("keys", "rule"), BROKEN)
def test_refused_runs(keys: tuple[str, ...], rule: str, tmp_path: Path) -> None:
    config, _ = small_config(tmp_path, *keys)
    with pytest.raises(ConfigError, match=rule) as raised:
        check_critic_report(config, CriticReportSettings())
    assert str(raised.value).startswith("critic=true ")


def test_exact_references_refused(tmp_path: Path) -> None:
    for keys, rule in [
        (("task=sorting", "task.protocol=dialogue", "task.num_turns=2"), "enumerates the responses of one step"),
        (("rollout.stop_strings=[x]",), "does not support rollout.stop_strings"),
    ]:
        config, _ = small_config(tmp_path, "algorithm=ppo", *keys)
        check_critic_report(config, SAMPLED)
        with pytest.raises(ConfigError, match=rule):
            check_critic_report(config, EXACT)


def test_settings() -> None:
    assert parse_report_settings({}) == CriticReportSettings()
    found = parse_report_settings({"critic_states": "9", "critic_responses": "2", "critic_continuations": "5"})
    assert (found.states, found.responses, found.continuations) == (9, 2, 5)
    assert parse_report_settings({"critic_reference": "exact"}).continuations == 4096
    for key, value in [("critic_states", "1"), ("critic_continuations", "x"), ("critic_reference", "best")]:
        with pytest.raises(ConfigError, match=f"^{key}={value}"):
            parse_report_settings({key: value})


@pytest.mark.slow
def test_states_are_distinct_and_deterministic(run: Path) -> None:
    first, again = report(run, SAMPLED)[1], report(run, SAMPLED)[1]
    assert first == again
    other = report(run, SAMPLED, "evaluation.seed=7")[1]
    assert other != first
    few = report(run, CriticReportSettings(states=10, responses=1, continuations=2))[1]
    assert all(sum(key[0] == agent for key in few) <= 10 for agent in ("same", "after"))


def test_no_states_of_failed_episodes() -> None:
    assert choose_states([], [], "low", 4, is_by_turn=False, seed=0) == []


def test_prompts_are_a_random_subset_of_held_out_rows(tmp_path: Path) -> None:
    config, _ = small_config(tmp_path)
    unused: Any = None
    held_out = [{"row": row} for row in range(64)]
    exam = EvaluationTask(config=config, environments=unused, held_out=held_out, reward=unused)
    batch, prompts = critic_report._select_prompts(SAMPLED, exam)
    assert [example["row"] for example in batch.examples] == prompts
    assert len(batch.index.unique()) == len(prompts)
    assert len(set(prompts)) < 64
    assert {row % 4 for row in prompts} == {0, 1, 2, 3}, "rows at equal distances would be of one kind"


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ((), "returns of the agent's score"),
        (("algorithm.truncation=mask",), "returns of the agent's score in episodes that are not truncated"),
        (
            (
                "algorithm.truncation=soft_penalty",
                "algorithm.truncation_penalty=1.0",
                "algorithm.truncation_ramp=0.2",
                "algorithm.gamma=0.9",
            ),
            "returns of the agent's score and truncation_penalty=1 (soft_penalty), discounted by gamma=0.9",
        ),
    ],
)
def test_description_of_returns_has_all_their_terms(tmp_path: Path, keys: tuple[str, ...], expected: str) -> None:
    config, _ = small_config(tmp_path, *KEYS, *keys)
    assert describe_returns(config) == expected
