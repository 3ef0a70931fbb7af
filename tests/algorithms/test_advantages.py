"""Advantage estimators on hand-worked rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ippo_cli.algorithms.advantages import substitute_final_values, turn_values
from ippo_cli.algorithms.inputs import AdvantageInputs, AdvantageOutputs, Source
from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Advantage, AlgorithmConfig, NormalizationScope, TurnValue
from ippo_cli.formulas import gae, place_scores
from ippo_cli.training.methods.registry import ESTIMATORS, build_estimator, build_parts
from ippo_cli.types import Batch, Experience, Rollout

MASK = torch.tensor([[1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1], [1, 1, 0, 0]], dtype=torch.bool)
TURN = torch.tensor([[0, 0, -1, 1], [0, -1, -1, -1], [0, 1, 1, 1], [0, 0, -1, -1]])
EMPTY = Experience(
    batch=Batch(examples=[], index=torch.zeros(0)), episodes=[], sampled={}, rollouts={}, scores={}, greedy={}, views={}
)
SCORE = torch.tensor([1.0, 4.0, 2.0, 0.0])
VALUES = torch.arange(16.0).reshape(4, 4) / 10 * MASK


def algorithm(**changes: Any) -> AlgorithmConfig:
    """The default algorithm's settings with some changes."""
    return replace(load_config().algorithm, **changes)


def inputs(**changes: Any) -> AdvantageInputs:
    whole = torch.where(MASK, 0, -1)
    given: dict[str, Any] = {
        "rewards": place_scores(SCORE[:, None], MASK, whole),
        "values": VALUES,
        "mask": MASK,
        "turn": TURN,
        "is_by_turn": False,
        "group": torch.tensor([7, 3, 7, 3]),
        "baseline": torch.zeros(4),
        "valid": torch.ones(4, dtype=torch.bool),
    }
    return AdvantageInputs(**given | changes)


def estimate(config: AlgorithmConfig, **changes: Any) -> AdvantageOutputs:
    return build_estimator(config).estimate_rows(inputs(**changes))


def estimate_team(config: AlgorithmConfig, team: dict[str, AdvantageInputs]) -> dict[str, AdvantageOutputs]:
    sources = {Source(name, name): own for name, own in team.items()}
    outputs, _ = build_estimator(config).estimate(sources, EMPTY, {})
    return {source.agent: own for source, own in outputs.items()}


def rows(numbers: list[float]) -> torch.Tensor:
    return torch.tensor(numbers)[:, None] * MASK


def test_all_estimators_registered() -> None:
    cross_agent = replace(algorithm().cross_agent, capability_window=3)
    config = algorithm(cross_agent=cross_agent)
    names = {name.value: "math:hypot" if name is Advantage.function else name.value for name in Advantage}
    built = {name: build_estimator(replace(config, advantage=typed)) for name, typed in names.items()}
    assert {name: own.name for name, own in built.items()} == {name: name for name in ESTIMATORS}
    assert [part.name for part in build_parts(config)] == ["whitening", "cross_agent", "disagreement"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"advantage": Advantage.group, "scale_by_std": True}, [-(0.5**0.5), 0.5**0.5, 0.5**0.5, -(0.5**0.5)]),
        ({"advantage": Advantage.group, "scale_by_std": False}, [-0.5, 2.0, 0.5, -2.0]),
        ({"advantage": Advantage.leave_one_out}, [-1.0, 4.0, 1.0, -4.0]),
    ],
)
def test_group_advantages(changes: dict, expected: list) -> None:
    found = estimate(algorithm(**changes))
    torch.testing.assert_close(found.advantages, rows(expected), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.returns, rows(SCORE.tolist()))
    assert found.usable.all()


def test_row_without_score_excluded() -> None:
    config = algorithm(advantage=Advantage.leave_one_out)
    valid = torch.tensor([False, True, True, True])
    found = estimate(config, valid=valid)
    torch.testing.assert_close(found.advantages, rows([0.0, 4.0, 0.0, -4.0]))
    assert found.usable.tolist() == [False, True, False, True]
    nobody = estimate(config, valid=torch.zeros(4, dtype=torch.bool))
    assert not nobody.advantages.any()
    assert not nobody.usable.any()


def test_group_scores_include_kl_penalty() -> None:
    penalty = torch.full((4, 4), 0.25) * MASK
    config = algorithm(advantage=Advantage.group, scale_by_std=False)
    found = estimate(config, rewards=inputs().rewards - penalty)
    shaped = SCORE - 0.25 * MASK.sum(1)
    expected = [
        shaped[0] - shaped[[0, 2]].mean(),
        shaped[1] - shaped[[1, 3]].mean(),
        shaped[2] - shaped[[0, 2]].mean(),
        shaped[3] - shaped[[1, 3]].mean(),
    ]
    torch.testing.assert_close(found.advantages, rows([float(number) for number in expected]))


def test_greedy_baseline() -> None:
    found = estimate(algorithm(advantage=Advantage.greedy_baseline), baseline=torch.tensor([1.0, 1.0, 0.0, 0.5]))
    torch.testing.assert_close(found.advantages, rows([0.0, 3.0, 2.0, -0.5]))


def test_reward_to_go_by_token_or_turn() -> None:
    config = algorithm(advantage=Advantage.reward_to_go, gamma=0.5)
    by_token = estimate(config).advantages
    torch.testing.assert_close(by_token[0], torch.tensor([0.25, 0.5, 0.0, 1.0]))
    torch.testing.assert_close(by_token[2], torch.tensor([0.25, 0.5, 1.0, 2.0]))
    by_turn = estimate(config, is_by_turn=True).advantages
    torch.testing.assert_close(by_turn[0], torch.tensor([0.5, 0.5, 0.0, 1.0]))
    torch.testing.assert_close(by_turn[2], torch.tensor([1.0, 2.0, 2.0, 2.0]))


def test_separate_critic_lambda() -> None:
    found = estimate(algorithm(gamma=0.9, gae_lambda=0.5, critic_gae_lambda=1.0))
    advantages, _ = gae(inputs().rewards, VALUES, MASK, gamma=0.9, gae_lambda=0.5)
    _, returns = gae(inputs().rewards, VALUES, MASK, gamma=0.9, gae_lambda=1.0)
    torch.testing.assert_close(found.advantages, advantages)
    torch.testing.assert_close(found.returns, returns)


@pytest.mark.parametrize(("by_turn", "actions"), [(False, [3, 1, 4, 2]), (True, [2, 1, 2, 1])])
def test_adaptive_lambda(by_turn: bool, actions: list[int]) -> None:
    config = algorithm(gae_lambda=None, length_adaptive_alpha=0.5, gamma=1.0, turn_value=TurnValue.first)
    found = estimate(config, is_by_turn=by_turn)
    for row, count in enumerate(actions):
        fixed = replace(config, length_adaptive_alpha=None, gae_lambda=max(0.0, 1 - 1 / (0.5 * count)))
        torch.testing.assert_close(found.advantages[row], estimate(fixed, is_by_turn=by_turn).advantages[row])


def rollout(turn: torch.Tensor) -> Rollout:
    zeros = torch.zeros(4, 4)
    return Rollout(
        prompt_ids=torch.ones(4, 1).long(),
        prompt_mask=torch.ones(4, 1).bool(),
        response_ids=turn,
        response_mask=MASK,
        turn=turn,
        length=torch.full((4,), 4),
        logprobs=zeros,
        behavior_logprobs=zeros,
        finished=torch.ones(4).bool(),
        texts=["", "", "", ""],
    )


def test_turn_value_after() -> None:
    config = algorithm(turn_value=TurnValue.post)
    final = torch.tensor([5.0, 6.0, 7.0, 8.0])
    one_turn = rollout(torch.where(MASK, 0, -1))
    seen = substitute_final_values(VALUES, final, one_turn, config)
    assert seen[0].tolist() == pytest.approx([0.0, 0.1, 0.0, 5.0])
    torch.testing.assert_close(turn_values(VALUES, final, one_turn, config), rows(final.tolist()))
    with pytest.raises(ConfigError, match="turn_value=post supports responses of one turn only"):
        substitute_final_values(VALUES, final, rollout(TURN), config)


def test_comlrl_advantages() -> None:
    final, one_turn = torch.tensor([5.0, 6.0, 7.0, 8.0]), rollout(torch.where(MASK, 0, -1))
    for name, baseline in (("comlrl_iac", VALUES[:, 0]), ("comlrl_ippo", final)):
        config = load_config([f"algorithm={name}"]).algorithm
        values = turn_values(VALUES, final, one_turn, config)
        found = estimate(config, values=values, turn=one_turn.turn, is_by_turn=True)
        torch.testing.assert_close(found.advantages, rows((SCORE - baseline).tolist()))
        torch.testing.assert_close(found.returns, rows(SCORE.tolist()))


def test_groups_of_several_agents() -> None:
    config = algorithm(advantage=Advantage.group, scale_by_std=False)
    two = {"a": inputs(), "b": inputs(rewards=inputs().rewards + 10.0 * (inputs().rewards != 0))}
    own = estimate_team(config, two)
    assert torch.equal(own["a"].advantages, rows([-0.5, 2.0, 0.5, -2.0]))
    joint = estimate_team(replace(config, normalization_scope=NormalizationScope.team), two)
    # The group of rows 0 and 2 has the scores 1, 2, 11 and 12; that of rows 1 and 3 has 4, 0, 14 and 0.
    assert torch.equal(joint["a"].advantages, rows([-5.5, -0.5, -4.5, -4.5]))
    assert torch.equal(joint["b"].advantages, rows([4.5, 9.5, 5.5, -4.5]))
    assert torch.equal(joint["b"].returns, own["b"].returns)
    scaled = replace(config, scale_by_std=True, normalization_scope=NormalizationScope.team)
    deviation = torch.tensor([1.0, 2.0, 11.0, 12.0]).std()
    found = estimate_team(scaled, two)["a"].advantages[0]
    assert torch.allclose(found, rows([-5.5, 0.0, 0.0, 0.0])[0] / deviation, atol=1e-5)
