"""What a method of training may do at each stage of an iteration; the stages walk over the methods of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch

from ippo_cli.agents.learner import Learner
from ippo_cli.agents.team import Team
from ippo_cli.algorithms.inputs import Source
from ippo_cli.config.schema import Config
from ippo_cli.reporting.stopwatch import Stopwatch
from ippo_cli.rewards.baselines import CreditBaselines
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rollout.collect import OnEpisodes
from ippo_cli.rollout.generator import Generator, SamplingStream
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.runs.signals import PreemptionHandler
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.tasks.schedule import ExampleSchedule
from ippo_cli.training.algorithm_state import AlgorithmState
from ippo_cli.training.minibatches import OptimizerStep
from ippo_cli.training.reward_calls import RewardCaller, RewardedEpisodes
from ippo_cli.types import Batch, Episode, Experience, Rollout, StepContext, Targets, Turn

PlayBatch = Callable[[Batch, OnEpisodes | None], list[Episode]]
"""Plays one episode per example of a part of this rank's batch."""


class Player(Protocol):
    """What methods use of the collector: it plays and scores episodes of this rank with the current weights."""

    config: Config
    team: Team
    schedule: ExampleSchedule
    environments: EnvironmentPool
    formats: Mapping[str, PromptFormat]
    generator: Generator
    initial_generator: Generator | None  # samples from the initial policies; None if no replays are needed
    build_generator: Callable[[Mapping[str, GenerationPolicy]], Generator]
    rewards: RewardCaller
    preemption: PreemptionHandler
    device: torch.device

    def play_episodes(
        self,
        batch: Batch,
        draws: SamplingStream,
        on_episodes: OnEpisodes | None = None,
        *,
        generator: Generator | None = None,
    ) -> list[Episode]:
        """One episode per example; `generator` defaults to the team's."""
        ...

    def batch_at(self, positions: Sequence[int]) -> Batch:
        """This rank's examples of prompts at these positions of the schedule. Collective."""
        ...

    def build_rollouts(
        self, episodes: Sequence[Episode], further: Mapping[str, FurtherTurns] | None = None
    ) -> dict[str, Rollout]:
        """Each agent's rows of the episodes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """The prompts of an iteration, before episodes are played."""

    iteration: int  # counted from 0
    draws: SamplingStream
    start: int  # the position of the first prompt in the schedule
    positions: Sequence[int]  # of all ranks' prompts
    end: int  # the position after the last drawn prompt
    batch: Batch  # this rank's examples


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherTurns:
    """Turns of an agent that are rows' columns beside those of the episodes."""

    first_number: int  # of these turns; equal on all ranks
    turns: list[list[Turn]]  # by row, numbered from `first_number`


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """The episodes of an iteration that are trained on, and their rewards."""

    prompts: Prompts
    rewarded: RewardedEpisodes
    further: Mapping[str, FurtherTurns] = field(default_factory=dict)  # by agent
    generated_tokens: float | None = None  # by all agents and ranks; None: those of these episodes
    failure: str | None = None  # why rows of this buffer have no reward, if a method has checked it

    @property
    def episodes(self) -> list[Episode]:
        """This rank's episodes."""
        return self.rewarded.episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredBuffer:
    """A buffer with its experience so far."""

    buffer: Buffer
    experience: Experience
    moments: Mapping[str, ScoreMoments]  # of each agent's scores, updated with this buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """An iteration after its update."""

    team: Team
    buffer: Buffer
    experience: Experience
    targets: Mapping[Source, Targets]
    state_before: AlgorithmState
    state_after: AlgorithmState


class Correction(Protocol):
    """Changes the targets of policies that are updated one after another in an iteration."""

    def correct(
        self, learner: Learner, targets: Mapping[str, Targets], turns: Mapping[str, int]
    ) -> tuple[Mapping[str, Targets], dict[str, float]]:
        """The targets of a learner's agents, and metrics; `turns`: by agent, the number of first turns with metrics."""
        ...

    def before_update(self, team: Team, learner: Learner) -> None:
        """Called before the update of each policy but the last."""
        ...

    def after_update(self, team: Team, learner: Learner) -> None:
        """Called after the update of each policy but the last."""
        ...


class Method:
    """One method of training. Every default does nothing; a method overrides the stages that it takes part in.

    All calls are collective, and in the order below. What a method keeps between them belongs to one iteration, except
    what `state_dict` holds.
    """

    name: ClassVar[str] = ""  # of its state in checkpoints; empty without one

    def state_dict(self) -> dict[str, Any]:
        """The state that checkpoints store, as values of JSON that later changes leave alone; equal on all ranks."""
        return {}

    def load_state_dict(self, stored: Mapping[str, Any]) -> None:
        """Restore the state."""

    def check_resume(self) -> None:
        """Check what a restored state refers to. Raises `ResumeError`."""

    def begin(self, team: Team, iteration: int, clock: Stopwatch) -> None:
        """Before an iteration (counted from 0)."""

    def wrap_play(self, player: Player, prompts: Prompts, draws: SamplingStream, play: PlayBatch) -> PlayBatch:
        """How an iteration's episodes are played; `play` does so without this method."""
        return play

    def play_before(
        self, player: Player, prompts: Prompts, play: Callable[[SamplingStream], list[Episode]], clock: Stopwatch
    ) -> None:
        """Play further episodes of the prompts; `play` takes their random stream."""

    def revise(self, player: Player, buffer: Buffer, clock: Stopwatch) -> Buffer:
        """Change which episodes are trained on."""
        return buffer

    def measure_baselines(
        self, player: Player, prompts: Prompts, episodes: Sequence[Episode], clock: Stopwatch
    ) -> CreditBaselines:
        """Baselines that scores are compared with."""
        return {}

    def extend(self, player: Player, scored: ScoredBuffer, clock: Stopwatch) -> Experience:
        """The experience with what this method adds."""
        return scored.experience

    def prepare_values(self, team: Team, experience: Experience) -> None:
        """Change critics before their values are read for targets."""

    def start_correction(self, experience: Experience, iteration: int) -> Correction | None:
        """The correction of an iteration's policies, which are then updated one after another; None without one."""
        return None

    def before_update(self, learner: Learner, targets: Mapping[str, Targets]) -> dict[str, float]:
        """Change a learner before its update; returns metrics. Collective over the ranks that hold it."""
        return {}

    def wrap_steps(
        self, learner: Learner, steps: Iterator[OptimizerStep], context: StepContext
    ) -> Iterator[OptimizerStep]:
        """Change the optimizer steps of a learner's update. Collective over the ranks that hold it."""
        return steps

    def metrics(self, outcome: Outcome) -> dict[str, float]:
        """Metrics of the iteration, by full name."""
        return {}

    def commit(self, player: Player, outcome: Outcome) -> None:
        """Change the state that checkpoints hold; called once the iteration is complete."""

    def clean_up(self) -> None:
        """Remove what no checkpoint refers to any more."""

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Files of the run's folder with rows, by name."""
        return {}

    def ratings(self) -> dict[str, float]:
        """Ratings of policies for the end of the run's output, by name."""
        return {}
