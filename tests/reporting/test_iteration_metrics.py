"""Metrics of a buffer, compared with hand-computed values."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from spoken import episode

from ippo_cli.formulas import gae
from ippo_cli.reporting.iteration_metrics import (
    add_prefix,
    current_policy_mask,
    explained_variance,
    greedy_metrics,
    rollout_metrics,
    target_metrics,
    turn_metrics,
)
from ippo_cli.reporting.metrics import is_documented
from ippo_cli.types import Rollout, Scores, Targets


def test_agents_have_distinct_metric_names() -> None:
    numbers = {"score/mean": 1.0}
    assert add_prefix("low", numbers) | add_prefix("high", numbers) == {"low/score/mean": 1.0, "high/score/mean": 1.0}


MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]], dtype=torch.bool)


def buffer(**changes: torch.Tensor) -> tuple[Rollout, Scores, Targets]:
    numbers = torch.tensor([[1.0, 2.0, 99.0], [3.0, 99.0, 99.0], [4.0, 5.0, 6.0]])
    logprobs = -numbers
    rollout = Rollout(
        prompt_ids=torch.ones(3, 1).long(),
        prompt_mask=torch.ones(3, 1).bool(),
        response_ids=torch.ones(3, 3).long(),
        response_mask=MASK,
        turn=torch.where(MASK, 0, -1),
        length=MASK.sum(dim=1),
        logprobs=logprobs,
        behavior_logprobs=changes.get("behavior_logprobs", logprobs),
        finished=torch.tensor([True, False, True]),
        texts=["a", "b", "c"],
    )
    raw = torch.tensor([[1.0], [0.0], [2.0]])
    scores = Scores(
        score=changes.get("score", raw),
        raw=raw,
        parts={"exact": torch.tensor([1.0, 7.0, torch.nan])},
        valid=torch.tensor([True, False, True]),
        failed=torch.tensor([False, True, False]),
    )
    targets = Targets(
        rewards=numbers,
        values=2 * numbers,
        final_values=torch.zeros(3),
        ref_logprobs=-2 * numbers,
        advantages=numbers,
        returns=3 * numbers,
        loss_mask=MASK,
        value_mask=MASK,
        behavior_weights=changes.get("weights", torch.ones(3, 3)),
        sample_counts=torch.tensor([2, 0, 1]),
        positive=torch.zeros(3, dtype=torch.bool),
    )
    return rollout, scores, targets


def test_rollout_metrics_match_hand_computation() -> None:
    found = rollout_metrics(*buffer(), kl_coef=0.25)
    mean = (1 + 2 + 3 + 4 + 5 + 6) / 6  # over action tokens, not over rows
    assert found == pytest.approx(
        {
            "rollout/logprob": -mean,
            "targets/reward": mean,
            "targets/return": 3 * mean,
            "kl/reference": mean,
            "kl/reward_coef": 0.25,
            "rollout/response_length": 2.0,
            "rollout/truncated_fraction": 1 / 3,
            "score/failed_fraction": 1 / 3,
            "score/mean": 1.5,
            "score/std": 0.5**0.5,
            "score/part/exact": 1.0,
        }
    )
    assert all(is_documented(f"low/{name}") for name in found)


def test_rows_without_score_have_no_reward_or_return() -> None:
    rollout, scores, targets = buffer()
    scored = MASK & scores.valid[:, None]
    found = rollout_metrics(rollout, scores, replace(targets, loss_mask=scored), kl_coef=0.25)
    assert found["targets/reward"] == pytest.approx((1 + 2 + 4 + 5 + 6) / 5)
    assert found["targets/return"] == pytest.approx(3 * (1 + 2 + 4 + 5 + 6) / 5)
    assert found["rollout/logprob"] == pytest.approx(-(1 + 2 + 3 + 4 + 5 + 6) / 6)
    none = rollout_metrics(rollout, scores, replace(targets, loss_mask=torch.zeros_like(MASK)), kl_coef=0.25)
    assert math.isnan(none["targets/return"])


def test_raw_and_processed_scores_are_reported() -> None:
    found = rollout_metrics(*buffer(score=torch.tensor([[-3.0], [0.0], [5.0]])), kl_coef=None)
    assert found["score/mean"] == 1.5
    assert found["score/processed/mean"] == 1.0
    assert found["score/processed/std"] == pytest.approx(32**0.5)
    assert all(is_documented(f"low/{name}") for name in found)
    assert "score/processed/mean" not in rollout_metrics(*buffer(), kl_coef=None)


def test_target_metrics_match_hand_computation() -> None:
    rollout, _, targets = buffer()
    silent = targets.advantages * MASK * torch.tensor([[1], [0], [1]])
    found = target_metrics(rollout, replace(targets, advantages=silent), has_values=True)
    assert found == pytest.approx(
        {
            "targets/value": 7.0,
            "targets/zero_advantage_fraction": 1 / 3,
            "targets/resampled_fraction": 2 / 3,
            "targets/advantage_std": torch.tensor([1.0, 2.0, 0.0, 4.0, 5.0, 6.0]).std().item(),
        }
    )
    assert all(is_documented(f"low/{name}") for name in found)
    assert "targets/value" not in target_metrics(rollout, targets, has_values=False)


def test_effective_sample_size_only_with_filters() -> None:
    rollout, _, targets = buffer(behavior_logprobs=torch.zeros(3, 3), weights=torch.tensor([[2.0, 0.0, 9.0]] * 3))
    found = target_metrics(rollout, targets, has_values=False)
    # the weights 2 0, 2, 2 0 9 have sum 15 and squares 4 + 4 + 4 + 81 = 93
    assert found["rollout/ess_ratio"] == pytest.approx(15**2 / (6 * 93))
    gap = sum(1 - math.exp(-number) for number in (1, 2, 3, 4, 5, 6)) / 6
    assert found["rollout/prob_diff/behavior"] == pytest.approx(gap)
    assert "rollout/prob_diff/behavior" not in target_metrics(*buffer()[::2], has_values=False)


def test_no_kl_without_reference() -> None:
    found = rollout_metrics(*buffer(), kl_coef=None)
    assert not [name for name in found if name.startswith("kl/")]


def test_filter_gap_is_reported_with_filters() -> None:
    found = rollout_metrics(*buffer(behavior_logprobs=torch.zeros(3, 3)), kl_coef=None)
    assert found["rollout/logprob_diff/filter"] == pytest.approx(3.5)
    assert "rollout/logprob_diff/filter" not in rollout_metrics(*buffer(), kl_coef=None)


def test_agent_without_turns_has_nan_metrics() -> None:
    rollout, scores, targets = buffer()
    nobody = torch.zeros_like(MASK)
    rollout = replace(rollout, response_mask=nobody, finished=torch.tensor([True, False, False]))
    scores = replace(scores, valid=torch.zeros(3).bool(), failed=torch.zeros(3).bool())
    targets = replace(targets, loss_mask=nobody, value_mask=nobody)
    found = rollout_metrics(rollout, scores, targets, kl_coef=0.25) | greedy_metrics(rollout, scores)
    found |= target_metrics(rollout, targets, has_values=True)
    found |= turn_metrics([episode() for _ in range(3)], "low", rollout)
    result = {name: value for name, value in found.items() if not math.isnan(value)}
    assert result == {
        "rollout/response_length": 0.0,
        "score/failed_fraction": 0.0,
        "kl/reward_coef": 0.25,
        "targets/resampled_fraction": 2 / 3,
        "rollout/turns": 0.0,
        "rollout/observation_tokens": 2.0,
        "rollout/overflow_fraction": 0.0,
        "rollout/new_sequences": 0.0,
    }
    assert {
        "score/mean",
        "score/std",
        "score/greedy",
        "rollout/truncated_fraction",
        "rollout/cut_fraction",
    } <= found.keys()


def test_rows_without_turns_are_not_truncated() -> None:
    rollout, scores, targets = buffer()
    silent = replace(rollout, response_mask=MASK & torch.tensor([[1], [0], [1]]).bool(), finished=torch.zeros(3).bool())
    assert rollout_metrics(silent, scores, targets, kl_coef=None)["rollout/truncated_fraction"] == 1.0
    silent = replace(silent, finished=torch.tensor([True, False, False]))
    assert rollout_metrics(silent, scores, targets, kl_coef=None)["rollout/truncated_fraction"] == 0.5


def test_snapshot_episodes_are_excluded_from_means() -> None:
    rollout, scores, targets = buffer()
    silent = replace(rollout, response_mask=MASK & torch.tensor([[1], [0], [1]]).bool())
    episodes = [episode(("low", 0, "a", "x")) for _ in range(3)]
    episodes[1] = replace(episodes[1], partners=frozenset({"low"}))
    own = current_policy_mask(episodes, "low")
    found = rollout_metrics(silent, scores, targets, None, own)
    assert (found["rollout/response_length"], found["score/failed_fraction"]) == (2.5, 0.0)
    assert turn_metrics(episodes, "low", silent)["rollout/turns"] == 1.0
    with_all = rollout_metrics(silent, scores, targets, None)
    assert with_all["rollout/response_length"] == pytest.approx(5 / 3)  # agents without turns have 0 tokens


def test_turn_metrics_match_hand_computation() -> None:
    low = [("low", 0, "a", "x"), ("high", 1, "b", "a"), ("low", 2, "c", "b", False)]
    episodes = [
        episode(*low),
        episode(("low", 0, "a", "x"), truncation="context", terminated=False, last_observations={"low": "long"}),
        episode(
            ("low", 0, "a", "x"),
            truncation="context",
            terminated=False,
            last_observations={"low": "short", "high": "long"},
            final={"low": [1, 2]},
        ),
    ]
    rollout = replace(buffer()[0], length=torch.tensor([3, 4, 3]))  # of these, 2, 1 and 3 are actions
    found = turn_metrics(episodes, "low", rollout)
    assert found == {
        "rollout/turns": pytest.approx(4 / 3),
        "rollout/observation_tokens": pytest.approx((1 + 3 + 0) / 3),
        "rollout/cut_fraction": pytest.approx(1 / 4),
        "rollout/overflow_fraction": pytest.approx(1 / 3),  # in the third episode, the other agent's context overflowed
        "rollout/new_sequences": 0.0,
    }
    assert all(is_documented(f"low/{key}") for key in found)


def targets_of(values: torch.Tensor, returns: torch.Tensor, rewards: torch.Tensor | None = None) -> Targets:
    mask, nothing = torch.ones(values.shape).bool(), torch.zeros(values.shape)
    return Targets(
        rewards=returns if rewards is None else rewards,
        values=values,
        final_values=nothing[:, 0],
        ref_logprobs=nothing,
        advantages=returns - values,
        returns=returns,
        loss_mask=mask,
        value_mask=mask,
        behavior_weights=nothing + 1,
        sample_counts=mask.sum(dim=1),
        positive=torch.zeros(len(mask), dtype=torch.bool),
    )


def test_explained_variance_matches_hand_computation() -> None:
    returns = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert explained_variance(targets_of(returns, returns), 1.0) == 1.0
    assert explained_variance(targets_of(returns - 7, returns), 1.0) == 1.0, "an error that is everywhere the same"
    assert explained_variance(targets_of(0 * returns, returns), 1.0) == 0.0
    # Errors 1 2 0 1 have variance 2/3, returns 5/3.
    worked_out = targets_of(torch.tensor([[0.0, 0.0], [3.0, 3.0]]), returns)
    assert explained_variance(worked_out, 1.0) == pytest.approx(1 - (2 / 3) / (5 / 3))
    far_off = targets_of(torch.randn(2, 2) * 1e4, returns)
    assert explained_variance(far_off, 1.0) < -1e4, "a critic that is far off is told, however far"


@pytest.mark.parametrize("score", [0.0, 1.0, -0.3])
@pytest.mark.parametrize("length", [1, 8, 512])
@pytest.mark.parametrize("gae_lambda", [1.0, 0.95])
def test_explained_variance_is_nan_for_equal_returns(score: float, length: int, gae_lambda: float) -> None:
    torch.manual_seed(0)
    values, rewards, mask = 0.5 + torch.randn(64, length) / 10, torch.zeros(64, length), torch.ones(64, length).bool()
    rewards[:, -1] = score

    def variance_of(gamma: float = 1.0) -> float:
        _, returns = gae(rewards, values, mask, gamma=gamma, gae_lambda=gae_lambda)
        return explained_variance(targets_of(values, returns, rewards), gamma)

    assert math.isnan(variance_of())
    if score and length > 1:
        assert math.isfinite(variance_of(gamma=0.9)), "later rewards are worth less"
    rewards[::2, -1] += 0.01
    assert math.isfinite(variance_of()), "a hundredth is more than rounding"


def test_credit_metrics_use_rows_with_known_credit() -> None:
    rollout, scores, targets = buffer()
    credit = torch.tensor([[0.5, -0.5], [math.nan, math.nan], [2.0, 1.0]])
    found = rollout_metrics(rollout, replace(scores, credit={"difference": credit}), targets, kl_coef=None)
    result = {name: value for name, value in found.items() if "credit/" in name}
    assert result == {
        "credit/difference/mean": 1.5,
        "credit/difference/std": pytest.approx(4.5**0.5),
        "credit/difference/zero_fraction": 0.5,
        "credit/difference/unknown_fraction": pytest.approx(1 / 3),
    }
    assert all(is_documented(f"low/{name}") for name in result)
    silent = replace(rollout, response_mask=MASK & torch.tensor([[1], [0], [1]]).bool())
    found = rollout_metrics(silent, replace(scores, credit={"difference": credit}), targets, kl_coef=None)
    assert found["credit/difference/unknown_fraction"] == 0.0
    nothing = replace(scores, credit={"difference": torch.full((3, 2), math.nan)})
    found = rollout_metrics(rollout, nothing, targets, kl_coef=None)
    assert math.isnan(found["credit/difference/mean"])
    assert found["credit/difference/unknown_fraction"] == 1.0
