"""`reward=environment`: the environment's own rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ippo_cli.config.schema import EnvironmentRewardConfig
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.credit import num_steps, turn_for_step, turn_steps
from ippo_cli.rewards.response_adapter import Agents
from ippo_cli.types import Episode


class EnvironmentReward:
    """`agent_by_turn`: each agent's environment rewards; `team_by_step`: their sum over agents; `parts`: the
    environment's.

    The reward of a step in which an agent did not act belongs to its last turn before that step, or to its first turn
    if there is none before it.
    """

    def __init__(self, agents: Sequence[str]) -> None:
        self.agents = list(agents)

    def __call__(self, episodes: Sequence[Episode]) -> Reward:
        names = sorted({name for episode in episodes for name in episode.parts})
        return Reward(
            team_by_step=[self._team_by_step(episode) for episode in episodes],
            agent_by_turn={name: [_rewards_by_turn(episode, name) for episode in episodes] for name in self.agents},
            parts={name: [episode.parts.get(name, math.nan) for episode in episodes] for name in names},
        )

    def _team_by_step(self, episode: Episode) -> list[float]:
        for step, paid in enumerate(episode.rewards):
            if unknown := sorted(paid.keys() - set(self.agents)):
                raise ValueError(
                    f"the environment returned rewards for unknown agents {unknown} at step {step}; "
                    f"the agents are {sorted(self.agents)}"
                )
        sums = [float(sum(paid.values())) for paid in episode.rewards]
        return sums + [0.0] * (num_steps(episode) - len(sums))


def _rewards_by_turn(episode: Episode, agent: str) -> list[float]:
    steps = turn_steps(episode, agent)
    paid_by_turn = [0.0] * len(steps)
    for step, paid in enumerate(episode.rewards):
        if steps and agent in paid:
            paid_by_turn[turn_for_step(steps, step)] += float(paid[agent])
    return paid_by_turn


def build_environment_reward(config: EnvironmentRewardConfig, agents: Agents) -> EnvironmentReward:
    """Build the reward of the configuration."""
    return EnvironmentReward(list(agents))
