"""What is likely wrong with a run, told by the experience of an iteration: of rewards, payments and joint actions."""

from __future__ import annotations

from collections.abc import Sequence

from ippo_cli.agents.team import Team
from ippo_cli.config.schema import PROTOCOLS, Config, ConversationConfig, UpdateOrder
from ippo_cli.engine import distributed
from ippo_cli.rewards.build import uses_environment_reward
from ippo_cli.rewards.contract import RewardFunction
from ippo_cli.rewards.environment import EnvironmentReward
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
    """By rule, the same on all ranks. `failure`: why rows have no reward. Collective."""
    found = {} if failure is None else {"failed_rows": failure}
    found |= environment_reward_warnings(config, reward, episodes, iteration)
    return found | (joint_action_warnings(config, team, episodes) if iteration == 0 else {})


def environment_reward_warnings(
    config: Config, reward: RewardFunction, episodes: Sequence[Episode], iteration: int
) -> dict[str, str]:
    """Where a protocol of the user's pays and the reward does not ask about it, or the other way round."""
    task = config.task
    if not isinstance(task, ConversationConfig) or task.protocol in PROTOCOLS:
        return {}
    played = [episode for episode in episodes if episode.failure is None]
    if distributed.any_rank(any(paid for episode in played for paid in episode.rewards)):
        if uses_environment_reward(reward):
            return {}
        return {
            "unread_payments": f"task.protocol={task.protocol} pays agents, and reward={config.reward.kind.value} does "
            "not look at it; use reward=environment, or return no rewards"
        }
    if iteration == 0 and isinstance(reward, EnvironmentReward) and distributed.any_rank(bool(played)):
        return {
            "nobody_paid": f"reward=environment is what is paid, and task.protocol={task.protocol} paid nobody in the "
            f"{config.rollout.buffer_size} episodes of the first iteration; let it return what agents are "
            "paid, 0.0 included, or use another reward"
        }
    return {}


def joint_action_warnings(config: Config, team: Team, episodes: Sequence[Episode]) -> dict[str, str]:
    """Where no two policies act at the same step: no factor of a sequential update is ever another than 1."""
    if config.team.update_order is not UpdateOrder.sequential or has_joint_actions(team, episodes):
        return {}
    return {
        "no_joint_actions": "team.update_order=sequential corrects for what others do at the same step, and in the "
        "first iteration no two policies acted at once: every factor was 1, as without it"
    }
