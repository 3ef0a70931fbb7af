"""Sums of later rewards (`algorithm.advantage=reward_to_go`)."""

from __future__ import annotations

from dataclasses import replace

import torch

from ippo_cli.algorithms.estimator import Estimator
from ippo_cli.algorithms.inputs import AdvantageInputs, AdvantageOutputs
from ippo_cli.config.schema import Advantage, Credit, Reweight
from ippo_cli.formulas import reward_to_go, turn_gae
from ippo_cli.training.targets import Algorithm


class RewardToGo(Estimator):
    """Discounted sum of rewards from each action on."""

    name = "reward_to_go"

    def estimate_rows(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        gamma = self.config.gamma
        assert gamma is not None
        if inputs.is_by_turn:  # without values, GAE at lambda 1 is the sum of the later rewards
            to_go, _ = turn_gae(
                inputs.rewards,
                torch.zeros_like(inputs.rewards),
                inputs.mask,
                inputs.turn,
                gamma=gamma,
                gae_lambda=1.0,
                turn_value="first",
            )
        else:
            to_go = reward_to_go(inputs.rewards, inputs.mask, gamma=gamma)
        return AdvantageOutputs(advantages=to_go, returns=to_go, usable=inputs.valid)


def use_reward_to_go(algorithm: Algorithm, credit: Credit) -> Algorithm:
    """The algorithm with sums of later rewards as returns, which hold no values; the same in all else that changes
    rewards. `credit`: the unit of an action.
    """
    config = replace(
        algorithm.config,
        advantage=Advantage.reward_to_go.value,
        advantage_normalization=False,
        gamma=1.0 if algorithm.config.gamma is None else algorithm.config.gamma,
        credit=credit,
        reweight=replace(algorithm.config.reweight, method=Reweight.none, power=None),
    )
    return replace(algorithm, config=config, only_returns=True)
