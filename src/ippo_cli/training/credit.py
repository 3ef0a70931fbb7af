"""Baselines for the credit assignment of each agent in an iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ippo_cli.config.credit import is_replay_iteration
from ippo_cli.config.reward_weights import reward_weights
from ippo_cli.config.schema import Config, CreditAssignment
from ippo_cli.rewards.contract import RewardFunction
from ippo_cli.rewards.counterfactual import blank_answers, gather_answers, other_episodes_baseline, recombined_baseline
from ippo_cli.rewards.score import Baseline
from ippo_cli.types import Episode

CreditBaselines = dict[CreditAssignment, dict[str, Baseline]]  # by method, then by agent
ReplayFn = Callable[[str], list[Episode]]
"""Replays the episodes with the named agent's initial policy."""


def compute_credit_baselines(
    config: Config,
    iteration: int,
    reward: RewardFunction,
    episodes: Sequence[Episode],
    trainable_agents: Sequence[str],
    replay: ReplayFn,
) -> CreditBaselines:
    """Baselines of the trainable agents: those used in training, and those that are only logged. Collective."""
    weights, settings = reward_weights(config), config.reward
    baselines: CreditBaselines = {}
    if is_replay_iteration(config, iteration):
        baselines[CreditAssignment.difference] = {
            name: other_episodes_baseline(reward, episodes, replay(name), name, weights, settings)
            for name in trainable_agents
        }
    if settings.credit_assignment is CreditAssignment.leave_out:
        baselines[CreditAssignment.leave_out] = {
            name: other_episodes_baseline(
                reward, episodes, [blank_answers(episode, name) for episode in episodes], name, weights, settings
            )
            for name in trainable_agents
        }
    if settings.credit_assignment is CreditAssignment.counterfactual:
        generations = config.rollout.num_generations
        answers = gather_answers(episodes, generations)
        baselines[CreditAssignment.counterfactual] = {
            name: recombined_baseline(reward, episodes, answers, generations, name, weights, settings)
            for name in trainable_agents
        }
    return baselines
