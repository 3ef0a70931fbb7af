"""Warnings derived from an iteration's experience: failed rewards, unused environment rewards, joint actions."""

from __future__ import annotations

from collections.abc import Sequence

from ippo_cli.agents.team import Team
from ippo_cli.config.schema import Config, UpdateOrder
from ippo_cli.engine import distributed
from ippo_cli.rewards.build import uses_environment_reward
from ippo_cli.rewards.contract import RewardFunction
from ippo_cli.rewards.environment import EnvironmentReward
from ippo_cli.tasks.task import task_setting
from ippo_cli.training.team_update import has_joint_actions
from ippo_cli.types import Episode


def experience_warnings(
    config: Config,
    team: Team,
    reward: RewardFunction,
    episodes: Sequence[Episode],
    failure: str | None,
    iteration: int,
) -> dict[str, str]:
    """Warnings by rule name, the same on all ranks. `failure`: why rows have no reward. Collective."""
    found = {} if failure is None else {"failed_rows": failure}
    found |= environment_reward_warnings(config, reward, episodes, iteration)
    return found | (joint_action_warnings(config, team, episodes) if iteration == 0 else {})


def environment_reward_warnings(
    config: Config, reward: RewardFunction, episodes: Sequence[Episode], iteration: int
) -> dict[str, str]:
    """Warn if a custom protocol returns rewards that `reward` does not use, or returns none that it needs."""
    task = config.task
    if not task.is_conversation or task.built_in_protocol is not None:
        return {}
    played = [episode for episode in episodes if episode.failure is None]
    if distributed.any_rank(any(paid for episode in played for paid in episode.rewards)):
        if uses_environment_reward(reward):
            return {}
        return {
            "unread_payments": f"{task_setting(task)} returns rewards, but reward={config.reward.kind} "
            "does not use them; set reward=environment, or return no rewards"
        }
    if iteration == 0 and isinstance(reward, EnvironmentReward) and distributed.any_rank(bool(played)):
        return {
            "nobody_paid": "reward=environment uses the protocol's rewards, but "
            f"{task_setting(task)} returned none in the {config.rollout.buffer_size} episodes of the first "
            "iteration; return a reward for each agent, 0.0 included, or set another reward"
        }
    return {}


def joint_action_warnings(config: Config, team: Team, episodes: Sequence[Episode]) -> dict[str, str]:
    """Warn if no two policies act at the same step: all factors of the sequential update are then 1."""
    if config.team.update_order is not UpdateOrder.sequential or has_joint_actions(team, episodes):
        return {}
    return {
        "no_joint_actions": "team.update_order=sequential corrects for other agents' actions at the same step, but no "
        "two policies acted at the same step in the first iteration: every correction factor was 1"
    }
