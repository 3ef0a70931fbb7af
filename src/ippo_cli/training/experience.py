"""Experience collection: plays episodes with the current weights, scores them, and builds rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from ippo_cli.agents.team import Team
from ippo_cli.config.errors import ResumeError
from ippo_cli.config.schema import Config
from ippo_cli.engine import distributed
from ippo_cli.reporting.stopwatch import Stopwatch
from ippo_cli.rewards.baselines import CreditBaselines
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.score import RawScores, process_scores
from ippo_cli.rollout.background_collection import BackgroundCollection, EpisodeCollection
from ippo_cli.rollout.collect import OnEpisodes, collect
from ippo_cli.rollout.episode_file import read_collection
from ippo_cli.rollout.generator import Generator, SamplingStream, StreamingGenerator
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.rollout.rows import build_rollout
from ippo_cli.runs.signals import PreemptionHandler
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.tasks.schedule import ExampleSchedule
from ippo_cli.training.methods.method import Buffer, FurtherTurns, Method, PlayBatch, Prompts
from ippo_cli.training.reward_calls import RewardCaller, RewardedEpisodes
from ippo_cli.training.sampler_gap import check_sampler_gap
from ippo_cli.types import Batch, Episode, Experience, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectResult:
    """The experience of an iteration, with the updated score moments and failure information."""

    buffer: Buffer
    experience: Experience
    moments: dict[str, ScoreMoments]  # of each agent's scores, updated with these episodes
    failure: str | None  # why rows have no reward; the same on all ranks
    environment_seconds: float  # spent in resetting and stepping environments
    following: EpisodeCollection | None  # in progress: the next iteration's episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutEpisodes:
    """Episodes on held-out rows with rollouts and raw scores, which policies that do not change can reuse."""

    batch: Batch
    episodes: list[Episode]
    rollouts: dict[str, Rollout]
    raw_scores: RawScores
    credit_baselines: CreditBaselines


@dataclass(kw_only=True)
class ExperienceCollector:
    """Plays and scores the episodes of one rank; does not change weights or moments."""

    config: Config
    team: Team
    schedule: ExampleSchedule
    environments: EnvironmentPool
    formats: Mapping[str, PromptFormat]
    generator: Generator
    initial_generator: Generator | None  # samples from the initial policies; None if no replays are needed
    build_generator: Callable[[Mapping[str, GenerationPolicy]], Generator]  # for policies that include opponents
    methods: Sequence[Method]
    rewards: RewardCaller
    preemption: PreemptionHandler
    device: torch.device
    num_ahead: int  # iterations with episodes that can be collected during the training of the one before; 0: none
    report_waiting: Callable[[int, int], None]  # the numbers of finished and of all episodes, during a wait
    running: BackgroundCollection | None = None  # the last one that was started

    def collect_iteration(
        self,
        iteration: int,
        moments: Mapping[str, ScoreMoments],
        clock: Stopwatch,
        started: EpisodeCollection | None = None,
        start: int | None = None,
    ) -> CollectResult:
        """Collect and score an iteration's episodes. Collective.

        `started`: the collection of these episodes, if an earlier iteration has started it. `start`: the position of
        the first prompt in the schedule; default: earlier iterations have drawn no additional prompts.
        """
        seconds_before = self.environments.seconds
        prompts = self._draw_prompts(iteration, start)
        for method in self.methods:
            method.play_before(self, prompts, partial(self._play_prompts, prompts), clock)
        rewarded, following = self._collect_sampled(prompts, clock, started)
        buffer = Buffer(prompts=prompts, rewarded=rewarded)
        for method in self.methods:
            buffer = method.revise(self, buffer, clock)
        episodes = buffer.episodes
        with clock("rollout"):
            sampled = self.build_rollouts(episodes, buffer.further)
        with clock("score"):
            raw_scores = self.rewards.combine(buffer.rewarded)
        self.preemption.raise_if_any_rank_requested()
        baselines = self._measure_baselines(buffer.prompts, episodes, clock)
        with clock("score"):
            scored = process_scores(raw_scores, episodes, self.config.reward, moments, baselines, device=self.device)
        rollouts = self._recompute_logprobs(sampled, clock) if self.config.rollout.recompute_logprobs else sampled
        check_sampler_gap(self.config, self.team, sampled, rollouts)
        with clock("targets"):
            views = self.team.critic_views(episodes, rollouts)
        experience = Experience(
            batch=buffer.prompts.batch,
            episodes=episodes,
            sampled=sampled,
            rollouts=rollouts,
            scores=scored.scores,
            greedy={},
            views=views,
        )
        for method in self.methods:
            experience = method.extend(self, buffer, experience, scored.moments, clock)
        environment_seconds = self.environments.seconds - seconds_before
        if started is not None:
            environment_seconds += started.environment_seconds
        if following is not None:
            environment_seconds -= following.environment_seconds
        return CollectResult(
            buffer=buffer,
            experience=experience,
            moments=scored.moments,
            failure=buffer.failure or scored.failure,
            environment_seconds=environment_seconds,
            following=following,
        )

    def collect_held_out(self, batch: Batch, draws: SamplingStream) -> HeldOutEpisodes:
        """Play held-out examples with the current policies, and call the reward. Collective."""
        episodes = self.play_episodes(batch, draws)
        prompts = Prompts(iteration=0, draws=draws, start=0, positions=(), end=0, batch=batch)
        return HeldOutEpisodes(
            batch=batch,
            episodes=episodes,
            rollouts=self.build_rollouts(episodes),
            raw_scores=self.rewards.combine(self.rewards.call(episodes)),
            credit_baselines=self._measure_baselines(prompts, episodes, Stopwatch()),
        )

    def score_held_out(self, held_out: HeldOutEpisodes, moments: Mapping[str, ScoreMoments]) -> Experience:
        """Experience of held-out episodes, with scores standardised by the moments of training. Collective."""
        scored = process_scores(
            held_out.raw_scores,
            held_out.episodes,
            self.config.reward,
            moments,
            held_out.credit_baselines,
            device=self.device,
            observe=False,
        )
        return Experience(
            batch=held_out.batch,
            episodes=held_out.episodes,
            sampled=held_out.rollouts,
            rollouts=held_out.rollouts,
            scores=scored.scores,
            greedy={},
            views=self.team.critic_views(held_out.episodes, held_out.rollouts),
        )

    def play_episodes(
        self,
        batch: Batch,
        draws: SamplingStream,
        on_episodes: OnEpisodes | None = None,
        *,
        generator: Generator | None = None,
    ) -> list[Episode]:
        """Play one episode per example; `generator` defaults to the team's.

        Raises `PreemptionRequested` on all ranks if preemption was requested on any rank.
        """
        return collect(
            self.environments,
            self.formats,
            batch,
            generator or self.generator,
            draws,
            poll=self.preemption.raise_if_requested,
            on_episodes=on_episodes,
        )

    def start_collection(self, iteration: int, num_updates: int) -> EpisodeCollection | None:
        """Start to collect an iteration's episodes beside training; None if it is not among the `num_ahead`.

        `num_updates`: of the current weights. Collective.
        """
        if iteration >= self.num_ahead:
            return None
        assert isinstance(self.generator, StreamingGenerator)
        self.running = BackgroundCollection(
            self.environments,
            self.formats,
            self._batch(iteration),
            self.generator,
            self._draws(iteration),
            iteration=num_updates,
        )
        return self.running

    def read_collection(self, paths: Sequence[Path], iteration: int) -> EpisodeCollection:
        """An iteration's episodes from files of a checkpoint. Raises `ResumeError`."""
        try:
            return read_collection(paths, self._batch(iteration))
        except (OSError, ValueError, KeyError) as error:
            raise ResumeError(f"the episodes of iteration {iteration + 1} in {paths[0].parent}: {error}") from error

    def close(self) -> None:
        """Close the environments, the generators and the reward's resources."""
        if self.running is not None:
            self.running.abandon()
        for generator in (self.generator, self.initial_generator):
            if generator is not None:
                generator.close()
        self.environments.close()
        self.rewards.close()

    def _batch(self, iteration: int) -> Batch:
        """This rank's examples of an iteration, if earlier ones have drawn no additional prompts. Collective."""
        first = self.schedule.first_position(iteration)
        return self.batch_at(range(first, first + self.schedule.prompts_per_iteration))

    def batch_at(self, positions: Sequence[int]) -> Batch:
        """This rank's examples of prompts at these positions of the schedule. Collective."""
        with distributed.synchronize_errors():
            return self.schedule.batch_at(positions, distributed.rank(), distributed.world_size())
        raise AssertionError("unreachable: the block above returns or raises")

    def _draws(self, iteration: int) -> SamplingStream:
        return SamplingStream(seed=self.config.seed, purpose=f"train/{iteration}")

    def _draw_prompts(self, iteration: int, start: int | None) -> Prompts:
        """The prompts of an iteration from a position of the schedule on. Collective."""
        if start is None:
            start = self.schedule.first_position(iteration)
        positions, end = self.schedule.select(start, self.schedule.prompts_per_iteration)
        return Prompts(
            iteration=iteration,
            draws=self._draws(iteration),
            start=start,
            positions=positions,
            end=end,
            batch=self.batch_at(positions),
        )

    def _collect_sampled(
        self, prompts: Prompts, clock: Stopwatch, started: EpisodeCollection | None
    ) -> tuple[RewardedEpisodes, EpisodeCollection | None]:
        """The rewarded episodes of the first round; between episodes and rewards, starts to collect the next ones."""
        iteration = prompts.iteration
        with self.rewards.stream() as streaming:
            with clock("rollout"):
                if started is not None:
                    episodes = started.wait(self.report_waiting)
                else:
                    on_finished = streaming.on_finished if streaming else None
                    episodes = self._play_prompts(prompts, prompts.draws, on_finished)
                following = self.start_collection(iteration + 1, num_updates=iteration)
            with clock("score"):
                rewarded = self.rewards.call(episodes, streaming)
            return rewarded, following

    def _play_prompts(
        self, prompts: Prompts, draws: SamplingStream, on_episodes: OnEpisodes | None = None
    ) -> list[Episode]:
        """Play an iteration's episodes, as the methods say."""

        def play_all(batch: Batch, on_episodes: OnEpisodes | None) -> list[Episode]:
            return self.play_episodes(batch, draws, on_episodes)

        play: PlayBatch = play_all
        for method in self.methods:
            play = method.wrap_play(self, prompts, draws, play)
        return play(prompts.batch, on_episodes)

    def build_rollouts(
        self, episodes: Sequence[Episode], further: Mapping[str, FurtherTurns] | None = None
    ) -> dict[str, Rollout]:
        """Each agent's rows of the episodes; `further`: turns of agents beside those of the episodes."""
        further = {} if further is None else further
        return {
            name: build_rollout(
                episodes,
                name,
                device=self.device,
                filtered=agent.rollout.has_filters,
                candidates=further[name].turns if name in further else None,
                first_candidate=further[name].first_number if name in further else 0,
            )
            for name, agent in self.config.task.agents.items()
        }

    def _measure_baselines(self, prompts: Prompts, episodes: Sequence[Episode], clock: Stopwatch) -> CreditBaselines:
        """Each agent's baselines, by kind of credit."""
        baselines: CreditBaselines = {}
        for method in self.methods:
            baselines |= method.measure_baselines(self, prompts, episodes, clock)
        return baselines

    def _recompute_logprobs(self, sampled: dict[str, Rollout], clock: Stopwatch) -> dict[str, Rollout]:
        """The same rollouts, with log-probabilities of trainable agents recomputed by the training model."""
        rescored = dict(sampled)
        with clock("logprobs"):
            for name, agent in self.team.items():
                rescored[name] = agent.recompute_logprobs(sampled[name])
                self.preemption.raise_if_any_rank_requested()
        return rescored
