"""Greedy responses to the prompts of an iteration: a baseline of the sampled ones (ReMax)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ippo_cli.config.reward_weights import reward_weights
from ippo_cli.reporting.stopwatch import Stopwatch
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.score import score
from ippo_cli.rollout.generator import SamplingStream
from ippo_cli.training.methods.method import Buffer, Method, Player, Prompts
from ippo_cli.types import Episode, Experience


class GreedyBaseline(Method):
    """Plays each prompt once more without sampling; environments use the same random numbers."""

    def __init__(self) -> None:
        self._episodes: list[Episode] = []

    def play_before(
        self, player: Player, prompts: Prompts, play: Callable[[SamplingStream], list[Episode]], clock: Stopwatch
    ) -> None:
        with clock("rollout"):
            self._episodes = play(replace(prompts.draws, greedy=True))

    def extend(
        self,
        player: Player,
        buffer: Buffer,
        experience: Experience,
        moments: Mapping[str, ScoreMoments],
        clock: Stopwatch,
    ) -> Experience:
        with clock("score"):
            scored = score(
                player.rewards.interruptible,
                self._episodes,
                player.config.reward,
                moments,
                weights=reward_weights(player.config),
                device=player.device,
                observe=False,
            )
        rollouts, self._episodes = player.build_rollouts(self._episodes), []
        return replace(experience, greedy={name: (rows, scored.scores[name]) for name, rows in rollouts.items()})
