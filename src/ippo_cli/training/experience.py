"""Experience collection: plays episodes with the current weights, scores them, and builds rollouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import torch

from ippo_cli.agents.team import Team
from ippo_cli.config.credit import is_credit_iteration
from ippo_cli.config.errors import ResumeError
from ippo_cli.config.reward_weights import reward_weights
from ippo_cli.config.schema import Config, FollowedCandidate
from ippo_cli.engine import distributed
from ippo_cli.reporting.stopwatch import Stopwatch
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.score import RawScores, process_scores, score
from ippo_cli.rollout.background_collection import BackgroundCollection, EpisodeCollection
from ippo_cli.rollout.branches import BranchEpisodes, State
from ippo_cli.rollout.collect import OnEpisodes, collect
from ippo_cli.rollout.continuations import collect_continuations
from ippo_cli.rollout.episode_file import read_collection
from ippo_cli.rollout.generator import Generator, SamplingStream, StreamingGenerator
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.rollout.rows import build_rollout
from ippo_cli.runs.signals import PreemptionHandler
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.tasks.schedule import ExampleSchedule
from ippo_cli.training.credit import CreditBaselines, EpisodeReplays, compute_credit_baselines
from ippo_cli.training.dynamic_sampling import CandidateGroups, RefilledBuffer, RewardedEpisodes, refill_buffer
from ippo_cli.training.monte_carlo import StateValueEstimator
from ippo_cli.training.opponents import OpponentPool
from ippo_cli.training.reward_calls import RewardCaller
from ippo_cli.training.sampler_gap import check_sampler_gap
from ippo_cli.training.shared_rollouts import share_rollouts
from ippo_cli.training.turn_groups import CandidateBuffer, CandidateRows, candidate_turns, collect_candidates
from ippo_cli.types import Batch, Episode, Experience, Rollout, Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectResult:
    """The experience of an iteration, with the updated score moments and failure information."""

    experience: Experience
    moments: dict[str, ScoreMoments]  # of each agent's scores, updated with these episodes
    failure: str | None  # why rows have no reward; the same on all ranks
    environment_seconds: float  # spent in resetting and stepping environments
    following: EpisodeCollection | None  # in progress: the next iteration's episodes
    start: int  # the position in the schedule of this iteration's first prompt
    end: int  # the position in the schedule after this iteration's prompts
    branch_tokens: int  # generated in branches for candidates of turns, over all ranks
    candidates: CandidateGroups | None  # all groups, replaced ones included; None without refills and curriculum


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
    """Plays and scores the episodes of one rank; does not change weights, moments or the opponent pool."""

    config: Config
    team: Team
    schedule: ExampleSchedule
    environments: EnvironmentPool
    formats: Mapping[str, PromptFormat]
    generator: Generator
    initial_generator: Generator | None  # samples from the initial policies; None if no replays are needed
    build_generator: Callable[[Mapping[str, GenerationPolicy]], Generator]  # for policies that include opponents
    opponents: OpponentPool | None
    needs_greedy: bool  # whether to collect greedy responses to the same prompts
    rewards: RewardCaller
    preemption: PreemptionHandler
    device: torch.device
    state_values: StateValueEstimator | None  # with `advantage=monte_carlo`
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
        draws = self._draws(iteration)
        if start is None:
            start = self.schedule.first_position(iteration)
        positions, end = self.schedule.select(start, self.schedule.prompts_per_iteration)
        batch = self._batch_at(positions)
        greedy_episodes: list[Episode] = []
        if self.needs_greedy:
            with clock("rollout"):  # same purpose, so environments use the same random numbers
                greedy_episodes = self._play_iteration(iteration, batch, replace(draws, greedy=True))
        rewarded, following = self._collect_sampled(iteration, batch, draws, clock, started)
        candidates = None
        if self.config.rollout.refill_rounds or self.schedule.curriculum is not None:
            refilled = self._refill(rewarded, positions, end, draws, clock)
            rewarded, candidates, end = refilled.rewarded, refilled.candidates, refilled.end
            batch = self._batch_at(refilled.positions)
        episodes = rewarded.episodes
        branched = None
        if self.config.algorithm.turn_groups.candidates > 1:
            branched = self._collect_candidates(episodes, draws, clock)
            episodes = branched.episodes
            if self.config.algorithm.turn_groups.follow is FollowedCandidate.best:
                with clock("score"):
                    rewarded = self.rewards.call(episodes)
        rows = {} if branched is None else branched.rows
        with clock("rollout"):
            sampled = self._build_rollouts(episodes, rows)
        with clock("score"):
            raw_scores = self.rewards.combine(rewarded)
        self.preemption.raise_if_any_rank_requested()
        credit_baselines = self._credit_baselines(iteration, batch, draws, episodes, clock)
        with clock("score"):
            scored = process_scores(
                raw_scores, episodes, self.config.reward, moments, credit_baselines, device=self.device
            )
        greedy = self._score_greedy(greedy_episodes, scored.moments, clock) if self.needs_greedy else {}
        rollouts = self._recompute_logprobs(sampled, clock) if self.config.rollout.recompute_logprobs else sampled
        check_sampler_gap(self.config, self.team, sampled, rollouts)
        shared = {}
        if self.config.team.share_rollouts:
            agents, exponent = self.config.task.agents, self.config.algorithm.cross_agent.exponent
            with clock("logprobs"):
                # A clipped ratio of two policies, unlike an importance weight, is of probabilities before filters.
                shared = share_rollouts(
                    self.team,
                    episodes,
                    rollouts,
                    self.preemption.raise_if_any_rank_requested,
                    unfiltered=[name for name in agents if exponent is not None and agents[name].rollout.has_filters],
                )
        state_values = {}
        if self.state_values is not None:
            with clock("continuations"):
                state_values = self.state_values.estimate(episodes, rollouts, scored.scores, draws)
        with clock("targets"):
            views = self.team.critic_views(episodes, rollouts)
        experience = Experience(
            batch=batch,
            episodes=episodes,
            sampled=sampled,
            rollouts=rollouts,
            scores={name: rows[name].widen(own) if name in rows else own for name, own in scored.scores.items()},
            greedy=greedy,
            views=views,
            state_values=state_values,
            turn_groups={name: own.groups for name, own in rows.items()},
            shared=shared,
        )
        environment_seconds = self.environments.seconds - seconds_before
        if started is not None:
            environment_seconds += started.environment_seconds
        if following is not None:
            environment_seconds -= following.environment_seconds
        return CollectResult(
            experience=experience,
            moments=scored.moments,
            failure=candidates.failure if candidates is not None and candidates.rounds else scored.failure,
            environment_seconds=environment_seconds,
            following=following,
            start=start,
            end=end,
            branch_tokens=0 if branched is None else branched.num_tokens,
            candidates=candidates,
        )

    def collect_held_out(self, batch: Batch, draws: SamplingStream) -> HeldOutEpisodes:
        """Play held-out examples with the current policies, and call the reward. Collective."""
        episodes = self.play_episodes(batch, draws)
        return HeldOutEpisodes(
            batch=batch,
            episodes=episodes,
            rollouts=self._build_rollouts(episodes),
            raw_scores=self.rewards.combine(self.rewards.call(episodes)),
            credit_baselines=self._credit_baselines(0, batch, draws, episodes, Stopwatch()),
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
        return self._batch_at(range(first, first + self.schedule.prompts_per_iteration))

    def _batch_at(self, positions: Sequence[int]) -> Batch:
        """This rank's examples of prompts at these positions of the schedule. Collective."""
        with distributed.synchronize_errors():
            return self.schedule.batch_at(positions, distributed.rank(), distributed.world_size())
        raise AssertionError("unreachable: the block above returns or raises")

    def _draws(self, iteration: int) -> SamplingStream:
        return SamplingStream(seed=self.config.seed, purpose=f"train/{iteration}")

    def _collect_sampled(
        self,
        iteration: int,
        batch: Batch,
        draws: SamplingStream,
        clock: Stopwatch,
        started: EpisodeCollection | None,
    ) -> tuple[RewardedEpisodes, EpisodeCollection | None]:
        """The rewarded episodes of the first round; between episodes and rewards, starts to collect the next ones."""
        with self.rewards.stream() as streaming:
            with clock("rollout"):
                if started is not None:
                    episodes = started.wait(self.report_waiting)
                else:
                    on_finished = streaming.on_finished if streaming else None
                    episodes = self._play_iteration(iteration, batch, draws, on_finished)
                following = self.start_collection(iteration + 1, num_updates=iteration)
            with clock("score"):
                rewarded = self.rewards.call(episodes, streaming)
            return rewarded, following

    def _refill(
        self, first: RewardedEpisodes, positions: Sequence[int], end: int, draws: SamplingStream, clock: Stopwatch
    ) -> RefilledBuffer:
        """Replace groups with equal scores by groups of further prompts, in up to `refill_rounds` rounds."""

        def draw(positions: Sequence[int], earlier_rows: int) -> RewardedEpisodes:
            self.preemption.raise_if_any_rank_requested()
            batch = self._batch_at(positions)
            with self.rewards.stream() as streaming:
                with clock("rollout"):
                    episodes = self.play_episodes(batch, draws, streaming.on_finished if streaming else None)
                with clock("score"):
                    return self.rewards.call(episodes, streaming, earlier_rows)

        def combine(rewarded: RewardedEpisodes) -> RawScores:
            with clock("score"):
                return self.rewards.combine(rewarded)

        return refill_buffer(
            first,
            positions,
            end,
            rounds=self.config.rollout.refill_rounds,
            schedule=self.schedule,
            agents=list(self.team),
            all_agents=self.team.names,
            draw=draw,
            combine=combine,
            settings=self.config.reward,
        )

    def _play_iteration(
        self, iteration: int, batch: Batch, draws: SamplingStream, on_episodes: OnEpisodes | None = None
    ) -> list[Episode]:
        """Play an iteration's episodes; those with opponents are played in separate batches."""
        if self.opponents is None:
            return self.play_episodes(batch, draws, on_episodes)

        def play_with(speakers: Mapping[str, GenerationPolicy], part: Batch, places: list[int]) -> list[Episode]:
            def map_places(part_places: list[int], episodes: list[Episode]) -> None:
                assert on_episodes is not None
                on_episodes([places[place] for place in part_places], episodes)

            callback = None if on_episodes is None else map_places
            generator = self.build_generator(speakers)
            try:
                return self.play_episodes(part, draws, callback, generator=generator)
            finally:
                generator.close()

        return self.opponents.play_episodes(self.team, batch, iteration, play_with)

    def _collect_candidates(
        self, episodes: Sequence[Episode], draws: SamplingStream, clock: Stopwatch
    ) -> CandidateBuffer:
        """The episodes with candidates for every turn of trained agents. Collective."""

        def play(episodes: Sequence[Episode], states: Sequence[State], count: int) -> BranchEpisodes:
            self.preemption.raise_if_any_rank_requested()
            return collect_continuations(
                self.environments,
                self.formats,
                episodes,
                states,
                count,
                self.generator,
                draws,
                keeps_other_actions=True,
            )

        with clock("rollout"):
            return collect_candidates(self.config, self.team, self.rewards.interruptible, episodes, play, self.device)

    def _build_rollouts(
        self, episodes: Sequence[Episode], candidates: Mapping[str, CandidateRows] = MappingProxyType({})
    ) -> dict[str, Rollout]:
        rollouts: dict[str, Rollout] = {}
        for name, agent in self.config.task.agents.items():
            further, first = candidate_turns(candidates, name)
            rollouts[name] = build_rollout(
                episodes,
                name,
                device=self.device,
                filtered=agent.rollout.has_filters,
                candidates=further,
                first_candidate=first,
            )
        return rollouts

    def _credit_baselines(
        self, iteration: int, batch: Batch, draws: SamplingStream, episodes: Sequence[Episode], clock: Stopwatch
    ) -> CreditBaselines:
        """Each agent's credit baselines; empty if this iteration measures no credit."""
        if not is_credit_iteration(self.config, iteration):
            return {}

        def play(part: Batch, generator: Generator) -> list[Episode]:
            return self.play_episodes(part, draws, generator=generator)

        replays = EpisodeReplays(
            play=play,
            batch=batch,
            episodes=episodes,
            purpose=draws.purpose,
            generator=self.generator,
            initial_generator=self.initial_generator,
        )
        with clock("credit"):
            return compute_credit_baselines(
                self.config, iteration, self.rewards.interruptible, replays, list(self.team)
            )

    def _score_greedy(
        self, episodes: Sequence[Episode], moments: Mapping[str, ScoreMoments], clock: Stopwatch
    ) -> dict[str, tuple[Rollout, Scores]]:
        """Every agent's greedy rollout for the same examples, with scores computed as for the sampled episodes."""
        with clock("score"):
            scored = score(
                self.rewards.interruptible,
                episodes,
                self.config.reward,
                moments,
                weights=reward_weights(self.config),
                device=self.device,
                observe=False,
            )
        return {name: (rows, scored.scores[name]) for name, rows in self._build_rollouts(episodes).items()}

    def _recompute_logprobs(self, sampled: dict[str, Rollout], clock: Stopwatch) -> dict[str, Rollout]:
        """The same rollouts, with log-probabilities of trainable agents recomputed by the training model."""
        rescored = dict(sampled)
        with clock("logprobs"):
            for name, agent in self.team.items():
                rescored[name] = agent.recompute_logprobs(sampled[name])
                self.preemption.raise_if_any_rank_requested()
        return rescored
