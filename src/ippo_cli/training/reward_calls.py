"""Calls of the run's reward on one rank's episodes, which a requested stop interrupts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ippo_cli.config.reward_weights import reward_weights
from ippo_cli.config.schema import Config
from ippo_cli.rewards.contract import Reward, RewardFunction, close_reward
from ippo_cli.rewards.score import RawScores, call_reward, combine_raw_scores
from ippo_cli.rewards.streaming import StreamingReward, streaming_reward
from ippo_cli.runs.faults import fault_point
from ippo_cli.runs.signals import PreemptionHandler
from ippo_cli.types import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardedEpisodes:
    """This rank's episodes of some prompts, and their rewards."""

    episodes: list[Episode]
    rewards: Reward
    failure: Exception | None  # the first one on this rank


@dataclass(frozen=True, kw_only=True)
class RewardCaller:
    """The reward with a run's settings."""

    config: Config
    reward: RewardFunction
    agents: Sequence[str]
    preemption: PreemptionHandler

    @property
    def interruptible(self) -> RewardFunction:
        """The reward function; its calls raise `PreemptionRequested` if a stop is requested."""
        return self.preemption.make_interruptible(self.reward)

    def stream(self) -> AbstractContextManager[StreamingReward | None]:
        """Calls on episodes as soon as they end, within the block; None if the run calls on whole buffers."""
        return streaming_reward(self.reward, self.agents, self.config.reward.reward_batch_rows)

    def call(
        self, episodes: list[Episode], streaming: StreamingReward | None = None, earlier_rows: int = 0
    ) -> RewardedEpisodes:
        """The episodes with their rewards. `earlier_rows`: of the buffer, rewarded before these. Collective."""
        fault_point("score")
        streamed = self.preemption.make_interruptible(streaming.wait_for_rewards) if streaming else None
        rewards, failure = call_reward(
            self.interruptible, episodes, self.agents, self.config.reward, streamed, earlier_rows
        )
        return RewardedEpisodes(episodes=episodes, rewards=rewards, failure=failure)

    def combine(self, rewarded: RewardedEpisodes) -> RawScores:
        """Every agent's scores, weighted by the settings. Collective."""
        return combine_raw_scores(
            rewarded.rewards,
            rewarded.failure,
            rewarded.episodes,
            reward_weights(self.config),
            self.agents,
            self.config.reward,
        )

    def close(self) -> None:
        """Close the reward's resources."""
        close_reward(self.reward)
