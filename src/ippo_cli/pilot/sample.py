"""The sample of a pilot: a buffer as in training, and further responses to its prompts that are only scored."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ippo_cli.agents.learner import EnsembleMember
from ippo_cli.algorithms.inputs import Source
from ippo_cli.engine import distributed
from ippo_cli.pilot.size import PilotSize
from ippo_cli.reporting.stopwatch import Stopwatch
from ippo_cli.rollout.generator import SamplingStream
from ippo_cli.training.experience import CollectResult
from ippo_cli.training.row_inputs import group_by_author
from ippo_cli.training.trainer import Trainer
from ippo_cli.types import Episode, Experience, Targets

RESCORED = 128  # responses that the reward scores a second time


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRow:
    """One episode, of any rank."""

    prompt: int  # the row of its example in the training data
    index: int  # the global sample index
    scores: Mapping[str, float]  # by agent, summed over turns; NaN without a valid score
    failed: bool  # whether the reward or the environment failed
    tokens: int  # that all agents sampled
    repeated_scores: Mapping[str, float] | None = None  # of another call of the reward on the same responses


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotSample:
    """The buffer of this rank with its targets, and the scores of all episodes of all ranks."""

    collected: CollectResult
    targets: Mapping[Source, Targets]
    rows: Sequence[ScoredRow]
    seconds: Mapping[str, float]  # by phase

    @property
    def experience(self) -> Experience:
        """This rank's rows."""
        return self.collected.experience

    @property
    def own_targets(self) -> dict[str, Targets]:
        """The targets of each agent's own rows."""
        return {source.agent: own for source, own in self.targets.items() if not source.is_shared}

    @property
    def shared_targets(self) -> Mapping[str, Mapping[str, Targets]]:
        """By agent and author, the targets of shared rows."""
        return group_by_author(self.targets)

    def select_part(self, part: int, parts: int, generations: int) -> PilotSample:
        """The sample with targets of every `parts`-th prompt only; other rows are not drawn in updates."""
        member, index = EnsembleMember(part, parts, generations), self.experience.batch.index
        selected = {source: member.select_rows(own, index) for source, own in self.targets.items()}
        return PilotSample(collected=self.collected, targets=selected, rows=self.rows, seconds=self.seconds)

    def rows_outside(self, part: int, parts: int, generations: int) -> Tensor:
        """`[B]` bool: the rows that `select_part` leaves out."""
        return self.experience.batch.index // generations % parts != part

    def scores_by_prompt(self, agent: str) -> list[list[float]]:
        """An agent's finite scores by prompt."""
        groups: dict[int, list[float]] = {}
        for row in self.rows:
            score = row.scores[agent]
            if math.isfinite(score):
                groups.setdefault(row.prompt, []).append(score)
        return list(groups.values())

    def pairs_by_prompt(self, agent: str) -> list[tuple[list[float], list[tuple[float, float]]]]:
        """An agent's finite scores of each prompt, and both scores of its responses that were scored twice."""
        groups: dict[int, tuple[list[float], list[tuple[float, float]]]] = {}
        for row in self.rows:
            scores, pairs = groups.setdefault(row.prompt, ([], []))
            if math.isfinite(score := row.scores[agent]):
                scores.append(score)
                if row.repeated_scores is not None and math.isfinite(again := row.repeated_scores[agent]):
                    pairs.append((score, again))
        return list(groups.values())


def collect_sample(trainer: Trainer, size: PilotSize) -> PilotSample:
    """Sample, score and compute targets as in the run's first iteration, for the prompts of the pilot. Collective."""
    state, collector, clock = trainer.state, trainer.collector, Stopwatch(trainer.console.show_phase)
    collector.num_ahead = 0
    collector.schedule.prompts_per_iteration = size.prompts
    for method in trainer.methods:
        method.begin(state.team, 0, clock)
    collected = collector.collect_iteration(0, state.moments, clock)
    for method in trainer.methods:
        method.prepare_values(state.team, collected.experience)
    targets, _ = state.algorithm.compute_all_targets(
        state.team, collected.experience, after_agent=trainer.preemption.raise_if_any_rank_requested
    )
    rows = _buffer_rows(trainer, collected.experience, clock)
    positions = collected.buffer.prompts.positions[: size.repeated_prompts]
    for number in range(size.repeats):
        rows += _score_again(trainer, positions, number, clock)
    gathered = [row for part in distributed.gather_objects(rows) for row in part]
    return PilotSample(
        collected=collected,
        targets=targets,
        rows=sorted(gathered, key=lambda row: row.index),  # stable: repeats stay in order
        seconds=clock.seconds,
    )


def _buffer_rows(trainer: Trainer, experience: Experience, clock: Stopwatch) -> list[ScoredRow]:
    """The episodes of the buffer; the first ones are scored twice. Collective."""
    scores = {name: own.raw.sum(dim=1).where(own.valid, math.nan) for name, own in experience.scores.items()}
    failed = {name: own.failed for name, own in experience.scores.items()}
    rows = _build_rows(trainer, experience.episodes, scores, failed)
    rewards, count = trainer.collector.rewards, -(-RESCORED // distributed.world_size())
    if trainer.config.reward.compares_rows:  # a part of the rows would have other scores
        count = len(rows)
    with clock("score"):
        raw = rewards.combine(rewards.call(experience.episodes[:count]))
    again = {name: own.sum(dim=1).where(~raw.failed[name], math.nan).tolist() for name, own in raw.numbers.items()}
    return [
        replace(row, repeated_scores={name: own[place] for name, own in again.items()}) if place < count else row
        for place, row in enumerate(rows)
    ]


def _score_again(trainer: Trainer, positions: Sequence[int], number: int, clock: Stopwatch) -> list[ScoredRow]:
    """Further episodes of some prompts, with raw scores. Collective."""
    collector = trainer.collector
    draws = SamplingStream(seed=trainer.config.seed, purpose=f"pilot/{number}")
    with clock("rollout"):
        episodes = collector.play_episodes(collector.batch_at(positions), draws)
    with clock("score"):
        raw = collector.rewards.combine(collector.rewards.call(episodes))
    scores = {name: own.sum(dim=1).where(~raw.failed[name], math.nan) for name, own in raw.numbers.items()}
    return _build_rows(trainer, episodes, scores, raw.failed)


def _build_rows(
    trainer: Trainer, episodes: Sequence[Episode], scores: Mapping[str, Tensor], failed: Mapping[str, Tensor]
) -> list[ScoredRow]:
    schedule = trainer.collector.schedule
    values = {name: own.tolist() for name, own in scores.items()}
    failures = {name: own.tolist() for name, own in failed.items()}
    return [
        ScoredRow(
            prompt=schedule.row_at(episode.index // schedule.num_generations),
            index=episode.index,
            scores={name: own[row] if math.isfinite(own[row]) else math.nan for name, own in values.items()},
            failed=any(own[row] for own in failures.values()),
            tokens=sum(len(turn.completion.ids) for turn in episode.turns),
        )
        for row, episode in enumerate(episodes)
    ]
