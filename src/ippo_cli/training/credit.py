"""What each agent's credit is measured against in an iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ippo_cli.config.credit import replays_in
from ippo_cli.config.reward_weights import reward_weights
from ippo_cli.config.schema import Config, CreditAssignment
from ippo_cli.rewards.contract import RewardFunction
from ippo_cli.rewards.counterfactual import answers_to_prompts, other_episodes_baseline, recombined_baseline, silent
from ippo_cli.rewards.score import Baseline
from ippo_cli.types import Episode

Baselines = dict[CreditAssignment, dict[str, Baseline]]  # by how credit is measured, those of each agent
Replayed = Callable[[str], list[Episode]]
"""The same episodes had an agent written as it did before training."""


def baselines(
    config: Config,
    iteration: int,
    reward: RewardFunction,
    episodes: Sequence[Episode],
    learning: Sequence[str],
    replayed: Replayed,
) -> Baselines:
    """Of the agents that are `learning`: those that are learnt from, and those that are measured for the log alone.

    Collective.
    """
    weights, settings = reward_weights(config), config.reward
    found: Baselines = {}
    if replays_in(config, iteration):
        found[CreditAssignment.difference] = {
            name: other_episodes_baseline(reward, episodes, replayed(name), name, weights, settings)
            for name in learning
        }
    if settings.credit_assignment is CreditAssignment.leave_out:
        found[CreditAssignment.leave_out] = {
            name: other_episodes_baseline(
                reward, episodes, [silent(episode, name) for episode in episodes], name, weights, settings
            )
            for name in learning
        }
    if settings.credit_assignment is CreditAssignment.counterfactual:
        generations = config.rollout.num_generations
        answers = answers_to_prompts(episodes, generations)
        found[CreditAssignment.counterfactual] = {
            name: recombined_baseline(reward, episodes, answers, generations, name, weights, settings)
            for name in learning
        }
    return found
