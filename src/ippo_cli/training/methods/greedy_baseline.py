"""Greedy responses to the prompts of an iteration: a baseline of the sampled ones (ReMax)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ippo_cli.algorithms.advantages import broadcast_rows, row_scores
from ippo_cli.algorithms.estimator import Estimator, RowContext
from ippo_cli.algorithms.inputs import AdvantageInputs, AdvantageOutputs
from ippo_cli.config.reward_weights import reward_weights
from ippo_cli.reporting.stopwatch import Stopwatch
from ippo_cli.rewards.score import score
from ippo_cli.rollout.generator import SamplingStream
from ippo_cli.training.methods.method import Method, Player, Prompts, ScoredBuffer
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

    def extend(self, player: Player, scored: ScoredBuffer, clock: Stopwatch) -> Experience:
        with clock("score"):
            greedy = score(
                player.rewards.interruptible,
                self._episodes,
                player.config.reward,
                scored.moments,
                weights=reward_weights(player.config),
                device=player.device,
                observe=False,
            )
        rollouts, self._episodes = player.build_rollouts(self._episodes), []
        found = {name: (rows, greedy.scores[name]) for name, rows in rollouts.items()}
        return replace(scored.experience, greedy=found)


class GreedyEstimator(Estimator):
    """The score of each response minus that of the greedy response."""

    name = "greedy_baseline"

    def prepare(self, inputs: AdvantageInputs, rows: RowContext) -> AdvantageInputs:
        if (greedy := rows.experience.greedy.get(rows.source.agent)) is None:
            return inputs
        rollout, scores = greedy
        baseline = rows.penalize(scores.score, rollout).sum(dim=1)
        return replace(inputs, baseline=baseline, valid=inputs.valid & scores.valid)

    def estimate_rows(self, inputs: AdvantageInputs) -> AdvantageOutputs:
        score = row_scores(inputs)
        return broadcast_rows(inputs, score - inputs.baseline, score, inputs.valid)
