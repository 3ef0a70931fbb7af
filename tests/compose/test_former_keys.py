"""Former names in saved overrides and metrics become present ones, in every form in which they may be written."""

from __future__ import annotations

import pytest

from ippo_cli.compose.former_keys import convert_overrides
from ippo_cli.runs.metric_names import present_metric_name

OVERRIDES = {
    "rollout.history=latest": "rollout.context=last_only",
    "rollout.history=prefix,latest": "rollout.context=append,last_only",
    "rollout.history=choice(prefix,latest)": "rollout.context=choice(append,last_only)",
    "rollout.history='latest'": "rollout.context='last_only'",
    "++task.agents.low.rollout.history=turns": "++task.agents.low.rollout.context=retokenize",
    "+sweep.space.rollout.history=choice(prefix,latest)": "+sweep.space.rollout.context=choice(append,last_only)",
    "sweep.space.reward.near=interval(0,1)": "sweep.space.reward.near_weight=interval(0,1)",
    "reward.parts.near.right=2": "reward.parts.near.exact_weight=2",
    "reward.parts={near: {kind: number, right: 1}}": "reward.parts={near: {kind: number, exact_weight: 1}}",
    "reward={kind: number, near: 0.5}": "reward={kind: number, near_weight: 0.5}",
    "team.partners={every: 3, share: 0.5}": "team.opponent_pool={every: 3, share: 0.5}",
    "team={partners: {every: 3}}": "team={opponent_pool: {every: 3}}",
    "rollout={history: latest}": "rollout={context: last_only}",
    "name=latest": "name=latest",
    "task.train=prefix/latest.jsonl": "task.train=prefix/latest.jsonl",
}


@pytest.mark.parametrize("former", OVERRIDES)
def test_override_has_present_names(former: str) -> None:
    assert convert_overrides([former]) == [OVERRIDES[former]]


def test_removed_keys_are_dropped() -> None:
    assert convert_overrides(["plan.tflops=9", "seed=1"]) == ["seed=1"]


METRICS = {
    "low/rollout/truncated_share": "low/rollout/truncated_fraction",
    "low/rollout/cut_share/turn/2": "low/rollout/cut_fraction/turn/2",
    "eval/sampled/low/overflow_share": "eval/sampled/low/overflow_fraction",
    "eval/greedy/failed_share": "eval/greedy/failed_fraction",
    "low/score/failed_share": "low/score/failed_fraction",
    "low/credit/difference/zero_share": "low/credit/difference/zero_fraction",
    "team/partners/size": "team/opponents/size",
}
PARTS = ("eval/sampled/cut_share", "low/score/part/unknown_share", "eval/sampled/zero_share")


@pytest.mark.parametrize("former", METRICS)
def test_metric_has_its_present_name(former: str) -> None:
    assert present_metric_name(former) == METRICS[former]


@pytest.mark.parametrize("name", PARTS)
def test_part_of_a_reward_keeps_its_name(name: str) -> None:
    assert present_metric_name(name) == name
