"""Per-turn metrics, compared with hand-computed values and whole runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small import experience_of, open_trainer, rows, train
from spoken import episode

from ippo_cli.reporting.metrics import is_documented
from ippo_cli.reporting.per_turn_metrics import logged_turn_counts, per_turn_means, per_turn_metrics
from ippo_cli.types import Rollout, Scores, Targets

TURN = torch.tensor([[0, 0, -1, 1], [0, -1, -1, -1], [0, -1, 1, 1]])
MASK = TURN >= 0
DIALOGUE = (
    "task.protocol=dialogue",
    "task.num_turns=3",
    "task.agents.low.template='{letters}{heard}<'",
    "task.agents.high.template='{letters}{heard}>'",
    "rollout.max_new_tokens=4",
    "task.eval_size=4",
    "evaluation.greedy=false",
    "num_iterations=1",
    "evaluation.every=0",
    "checkpoint.every=0",
)


def buffer() -> tuple[Rollout, Scores, Targets]:
    """Rows with turns of 2 and 1, of 1, and of 1 and 2 tokens; the last row has no score."""
    numbers = torch.tensor([[1.0, 2.0, 90.0, 3.0], [4.0, 90.0, 90.0, 90.0], [5.0, 90.0, 6.0, 7.0]])
    rollout = Rollout(
        prompt_ids=torch.ones(3, 1).long(),
        prompt_mask=torch.ones(3, 1).bool(),
        response_ids=torch.ones(3, 4).long(),
        response_mask=MASK,
        turn=TURN,
        length=torch.tensor([4, 1, 4]),
        logprobs=-numbers,
        behavior_logprobs=-numbers,
        finished=torch.ones(3).bool(),
        texts=["", "", ""],
    )
    scores = Scores(
        score=torch.zeros(3, 2),
        raw=torch.tensor([[1.0, 2.0], [3.0, 0.0], [0.0, 0.0]]),
        parts={},
        valid=torch.tensor([True, True, False]),
        failed=torch.tensor([False, False, True]),
        credit={"difference": torch.tensor([[0.5, 1.0], [0.25, 0.0], [math.nan, math.nan]])},
    )
    targets = Targets(
        rewards=10 * numbers,
        values=numbers,
        final_values=torch.zeros(3),
        ref_logprobs=-3 * numbers,
        advantages=numbers,
        returns=2 * numbers,
        loss_mask=MASK,
        value_mask=MASK,
        behavior_weights=torch.ones(3, 4),
        sample_counts=torch.ones(3).long(),
        positive=torch.zeros(3, dtype=torch.bool),
    )
    return rollout, scores, targets


def test_turn_means_match_hand_computation() -> None:
    episodes = [
        episode(("low", 0, "", "", True, 2), ("high", 1, ""), ("low", 2, "", "", False, 1)),
        episode(("low", 0, "", "", True, 1)),
        episode(("low", 0, "", "", True, 1), ("low", 1, "", "", True, 2)),
    ]
    found = per_turn_means(episodes, "low", *buffer(), 3, has_reference=True)
    assert found == pytest.approx(
        {
            "rollout/response_length/turn/1": 4 / 3,
            "rollout/response_length/turn/2": 3 / 2,
            "rollout/response_length/turn/3": math.nan,
            "rollout/cut_fraction/turn/1": 0.0,
            "rollout/cut_fraction/turn/2": 1 / 2,
            "rollout/cut_fraction/turn/3": math.nan,
            "rollout/logprob/turn/1": -(1 + 2 + 4 + 5) / 4,
            "rollout/logprob/turn/2": -(3 + 6 + 7) / 3,
            "rollout/logprob/turn/3": math.nan,
            "targets/reward/turn/1": 30.0,
            "targets/reward/turn/2": 160 / 3,
            "targets/reward/turn/3": math.nan,
            "targets/return/turn/1": 6.0,
            "targets/return/turn/2": 32 / 3,
            "targets/return/turn/3": math.nan,
            "kl/reference/turn/1": 6.0,
            "kl/reference/turn/2": 32 / 3,
            "kl/reference/turn/3": math.nan,
            "score/turn/1": 2.0,  # the last row has no score
            "score/turn/2": 2.0,
            "score/turn/3": math.nan,
            "credit/difference/mean/turn/1": 0.375,
            "credit/difference/mean/turn/2": 1.0,
            "credit/difference/mean/turn/3": math.nan,
        },
        nan_ok=True,
    )
    assert all(is_documented(f"low/{name}") for name in found)
    assert not any("kl/" in name for name in per_turn_means(episodes, "low", *buffer(), 3, has_reference=False))

    rollout, scores, targets = buffer()
    scored = replace(targets, loss_mask=MASK & torch.tensor([[True], [False], [True]]))
    found = per_turn_means(episodes, "low", rollout, scores, scored, 3, has_reference=False)
    assert found["targets/return/turn/1"] == pytest.approx(2 * (1 + 2 + 5) / 3)
    assert found["rollout/logprob/turn/1"] == pytest.approx(-(1 + 2 + 4 + 5) / 4)


def test_turns_of_a_run_sum_to_its_rows(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *DIALOGUE) as trainer:
        team = trainer.state.team
        experience = experience_of(trainer)
        targets, _ = trainer.state.algorithm.compute_targets(team, experience)
        found = per_turn_metrics(team, experience, targets, {"low": 3, "high": 3})
        for name, agent in team.items():
            rollout, own = experience.rollouts[name], targets[name]
            tokens = [int((rollout.turn == turn).sum()) for turn in range(3)]
            whole = {
                "targets/value": own.values,
                "targets/advantage": own.advantages,
                "targets/return": own.returns,
                "rollout/logprob": rollout.logprobs,
            }
            for key, numbers in whole.items():
                by_turn = [found[f"{name}/{key}/turn/{turn}"] for turn in (1, 2, 3)]
                joint = sum(mean * count for mean, count in zip(by_turn, tokens, strict=True)) / sum(tokens)
                assert joint == pytest.approx(float(numbers.double()[rollout.response_mask].mean()), abs=1e-6)
            second = rollout.turn == 1
            spread = float(own.advantages.double()[second].std())
            assert found[f"{name}/targets/advantage_std/turn/2"] == pytest.approx(spread, abs=1e-9)
            returns, values = own.returns.double()[second], own.values.double()[second]
            explained = float(1 - (returns - values).var() / returns.var())
            assert found[f"{name}/value/explained_variance/turn/2"] == pytest.approx(explained, abs=1e-6)
            assert agent.has_values
        scores = [sum(found[f"{name}/score/turn/{turn}"] for turn in (1, 2, 3)) for name in team]
        assert scores == pytest.approx([float(experience.scores[name].raw.sum(dim=1).mean()) for name in team])
        assert per_turn_metrics(team, experience, targets, {}) == {}
        first = per_turn_metrics(team, experience, targets, {"low": 2, "high": 2})
        assert first == {key: value for key, value in found.items() if not key.endswith("/3")}


def test_logged_turns_are_limited() -> None:
    episodes = [episode(("low", 0, ""), ("low", 1, ""), ("high", 1, "")), episode(("low", 0, ""))]
    names = ["low", "high"]
    assert logged_turn_counts(names, episodes, {"low": 3, "high": None}, 8) == {"low": 3, "high": 1}
    assert logged_turn_counts(names, episodes, {"low": None, "high": 1}, 8) == {"low": 2}
    assert logged_turn_counts(names, episodes, {"low": 3, "high": None}, 1) == {"low": 1, "high": 1}
    assert logged_turn_counts(names, episodes, {"low": 3, "high": None}, 0) == {}


@pytest.mark.slow
def test_single_turn_agents_have_no_turn_metrics(tmp_path: Path) -> None:
    once = rows(train(tmp_path, *DIALOGUE[-4:]))
    assert not any("/turn/" in key or key.endswith("/turns") for row in once for key in row)
    several = rows(train(tmp_path, *DIALOGUE, "tracker.turns=2"))
    assert {key.rpartition("/")[2] for key in several[-1] if "/turn/" in key} == {"1", "2"}
