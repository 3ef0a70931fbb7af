"""The corridor: prompts, rollout, score, targets, update, log, checkpoint, once per iteration in this order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.profiler import record_function

from ippo_cli.agents.agent import GenerationPolicy
from ippo_cli.config.arithmetic import Arithmetic
from ippo_cli.config.checks import PROTOCOLS
from ippo_cli.config.credit import measures_credit_in
from ippo_cli.config.errors import NonFiniteError, Preempted, PreemptionRequested, StorageError
from ippo_cli.config.reward_weights import reward_weights
from ippo_cli.config.schema import Config, ConversationConfig, UpdateOrder
from ippo_cli.engine import distributed
from ippo_cli.rewards.build import reads_payments
from ippo_cli.rewards.contract import RewardFunction
from ippo_cli.rewards.environment import EnvironmentReward
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.score import mixed_scores, processed_scores, score
from ippo_cli.rewards.streaming import streaming_reward
from ippo_cli.rollout.collect import OnEpisodes, collect
from ippo_cli.rollout.generator import Draws, Generator
from ippo_cli.rollout.replay import Substituted
from ippo_cli.rollout.rows import to_rows
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.tasks.schedule import ExampleSchedule
from ippo_cli.tasks.task import Task, most_turns
from ippo_cli.training.checkpoint import Checkpoints, State
from ippo_cli.training.console import Console
from ippo_cli.training.credit import Baselines, baselines
from ippo_cli.training.evaluate import Evaluation, evaluate
from ippo_cli.training.folder import from_here
from ippo_cli.training.metrics import iteration_row, pace, prefixed
from ippo_cli.training.partners import Partners
from ippo_cli.training.profile import PREFIX, profiled
from ippo_cli.training.reached import ReachedPoint
from ippo_cli.training.run import Run
from ippo_cli.training.samples import sample_rows
from ippo_cli.training.signals import PreemptionHandler
from ippo_cli.training.team_update import acts_together, update_team
from ippo_cli.training.turn_numbers import shown_turns, turn_row
from ippo_cli.training.unusual import unusual_rows
from ippo_cli.types import Batch, Episode, Experience, Rollout, Scores, StepContext


@dataclass
class Stopwatch:
    """Seconds by phase of one iteration."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        with record_function(f"{PREFIX}{phase}"):
            yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began


@dataclass(kw_only=True)
class Trainer:
    """One run on one rank, from built parts to the last checkpoint."""

    config: Config
    plan: Arithmetic
    task: Task
    schedule: ExampleSchedule
    environments: EnvironmentPool
    formats: Mapping[str, PromptFormat]
    generator: Generator
    initial: Generator | None  # who writes as the agents did before training; None where nobody asks
    generator_of: Callable[[Mapping[str, GenerationPolicy]], Generator]  # where partners speak beside the team
    partners: Partners | None
    reward: RewardFunction
    state: State
    run: Run
    checkpoints: Checkpoints
    console: Console
    preemption: PreemptionHandler
    device: torch.device
    recent: deque[Mapping[str, float]]  # the last rows of the log, for what is unusual in them
    saving_seconds: float = 0.0  # of the checkpoint that was last written, to be logged with the next row

    def __post_init__(self) -> None:
        self.turns = most_turns(self.config.task)
        self._reached()

    def train(self) -> None:
        """Walk the corridor until the last iteration. Raises `Preempted` after saving when asked to leave."""
        try:
            self._iterate()
        except PreemptionRequested:
            if not self.save_reached():
                reason = self.checkpoints.reason
                raise StorageError(f"asked to leave, and the checkpoint could not be saved ({reason})") from None
            saved = f"asked to leave; saved after iteration {self.point.iteration}"
            raise Preempted(f"{saved}; go on with: ippo-train resume={from_here(self.run.folder)}") from None

    def _iterate(self) -> None:
        if "first" not in self.run.state.evaluation:
            self._evaluate_first()
        if self.state.progress.row is not None:
            self._finish_iteration()
        # Profiled, where asked for, is the first iteration of this process that finds everything warm.
        warm = min(self.state.progress.iteration + 1, self.plan.num_iterations - 1)
        while (iteration := self.state.progress.iteration) < self.plan.num_iterations:
            asked = self.config.tracker.profile and iteration == warm
            with profiled(self.run.folder, iteration + 1, self.console.say) if asked else nullcontext():
                experience = self.step()
            self._show_training_samples(experience)
            del experience  # its tensors need not lie beside those of an evaluation
            self._finish_iteration()

    def _reached(self) -> None:
        self.point = ReachedPoint(self.state)

    def can_save(self, error: BaseException) -> bool:
        """Whether a checkpoint of the point that was reached would be worth something after this error.

        Not where weights have moved since, may be corrupt, or are still the initial ones, nor where another checkpoint
        would fail as well.
        """
        corrupt = isinstance(error, NonFiniteError) or distributed.lost_connection(error)
        hopeless = isinstance(error, StorageError) or self.preemption.insisted
        return not (corrupt or hopeless or self.point.weights_moved) and self.point.iteration > 0

    def save_reached(self) -> bool:
        """Save the point that was reached last; False where that failed. Collective."""
        self.point.go_back()
        if self.state.progress.metrics_bytes is None and self.state.progress.row is None:  # no later row is there yet
            self.state.progress.metrics_bytes = self.run.metrics_size()
        return self.checkpoints.save(self.state)

    def free(self) -> None:
        """Give the engines' memory and hooks back; the trainer cannot be used afterwards."""
        self.environments.close()
        for learner in self.state.team.learners:
            learner.engine.destroy()

    def step(self) -> Experience:
        """One iteration of training, the next of `state.progress`, and what it learnt from.

        Its metrics are `state.progress.row` afterwards; nothing is evaluated, logged or saved.
        """
        state, clock, iteration = self.state, Stopwatch(), self.state.progress.iteration
        team, algorithm = state.team, state.algorithm
        stepped = self.environments.seconds
        context = StepContext(seed=self.config.seed, iteration=iteration, num_iterations=self.plan.num_iterations)
        experience, moments = self.experience(iteration, clock)
        with clock("targets"):
            targets, kl_coef = algorithm.targets(team, experience)
        self.point.weights_moved = True
        with clock("update"):
            turns = shown_turns(team, experience.episodes, self.turns, self.config.tracker.turns)
            stats = update_team(team, experience, targets, self.config, context, turns)
        coefs = algorithm.kl_coefs(team)
        row = iteration_row(iteration + 1, team, experience, targets, coefs, stats, self.turns)
        row |= turn_row(team, experience, targets, turns)
        row |= pace(row, team.names, self.config.rollout.buffer_size, clock.seconds, self.saving_seconds)
        if self.partners is not None:
            row |= self.partners.record(experience.episodes, iteration)
        row["time/environments"] = self.environments.seconds - stepped
        self.saving_seconds = 0.0
        algorithm.kl_coef, state.moments = kl_coef, moments
        state.progress.iteration, state.progress.row = iteration + 1, row
        self._reached()
        if self.partners is not None:
            self.partners.tidy()
        return experience

    def experience(self, iteration: int, clock: Stopwatch) -> tuple[Experience, dict[str, ScoreMoments]]:
        """What the agents do in an iteration and what it is worth, and the moments of scores with it taken in."""
        team, config = self.state.team, self.config
        if self.partners is not None:
            with clock("partners"):
                self.partners.begin(team, iteration)
        with distributed.failing_together():
            batch = self.schedule.batch(iteration, distributed.rank(), distributed.world_size())
        draws = Draws(seed=config.seed, purpose=f"train/{iteration}")
        greedy_episodes: list[Episode] = []
        if self.state.algorithm.needs_greedy:
            with clock("rollout"):  # of the same purpose: in environments with the same luck
                greedy_episodes = self._play(iteration, batch, replace(draws, greedy=True))
        with streaming_reward(self.reward, list(team.names), config.reward.reward_batch_rows) as streaming:
            with clock("rollout"):
                episodes = self._play(iteration, batch, draws, streaming.on_finished if streaming else None)
                sampled = self._rows(episodes)
            with clock("score"):
                own = mixed_scores(
                    self.preemption.interruptible(self.reward),
                    episodes,
                    reward_weights(config),
                    team.names,
                    config.reward,
                    self.preemption.interruptible(streaming.answered) if streaming else None,
                )
            measured = self._baselines(iteration, batch, draws, episodes, clock)
            with clock("score"):
                moments = self.state.moments
                scored = processed_scores(own, episodes, config.reward, moments, measured, device=self.device)
            self._warn_of_failed_rows(scored.failure)
            self._look_at_payments(iteration, episodes)
            if iteration == 0 and config.team.update_order is UpdateOrder.sequential:
                self._look_at_joint_actions(episodes)
        greedy = (
            self._scored_greedy(greedy_episodes, scored.moments, clock) if self.state.algorithm.needs_greedy else {}
        )
        rollouts = sampled
        if config.rollout.recompute_logprobs:
            with clock("logprobs"):
                rollouts = sampled | {name: agent.rescored(sampled[name]) for name, agent in team.items()}
        with clock("targets"):
            views = team.critic_views(episodes, rollouts)
        experience = Experience(
            batch=batch,
            episodes=episodes,
            sampled=sampled,
            rollouts=rollouts,
            scores=scored.scores,
            greedy=greedy,
            views=views,
        )
        return experience, scored.moments

    def _show_training_samples(self, experience: Experience) -> None:
        iteration, every = self.state.progress.iteration, self.config.tracker.samples_every
        samples = []
        if every > 0 and iteration % every == 0:
            raw = {
                name: scores.raw.where(scores.valid[:, None], torch.nan) for name, scores in experience.scores.items()
            }
            samples = sample_rows("train", experience.episodes, raw, self.config.tracker.samples)
        self._show_samples(f"train_{iteration:08d}", samples)

    def _show_samples(self, name: str, samples: list[dict[str, Any]]) -> None:
        with distributed.failing_together():
            self.run.log_samples(name, samples)
            self.console.samples(samples)

    def _finish_iteration(self) -> None:
        """Evaluate where due, log, show, save: everything of an iteration that training does not read."""
        iteration, row = self.state.progress.iteration, self.state.progress.row
        assert row is not None
        every, last = self.config.evaluation.every, iteration == self.plan.num_iterations
        found = None
        if last or (every > 0 and iteration % every == 0):
            began = time.perf_counter()
            found = self._evaluate()
            row = row | prefixed("eval", found.metrics) | {"time/evaluation": time.perf_counter() - began}
        if self.partners is not None and self.config.team.partners.elo:
            self.run.write_table("elo.json", self.partners.table())
        with distributed.failing_together():
            self.run.log(row)
            self.console.iteration(row, self.plan.num_iterations)
            self.recent.append(row)
            self.console.warn(self.run.note(unusual_rows(self.recent, self.config)))
            improved = found is not None and self._note_evaluation(iteration, found)
            self.state.progress.row, self.state.progress.metrics_bytes = None, self.run.metrics_size()
        self._reached()
        if self.checkpoints.due(iteration, self.plan.num_iterations, improved=improved):
            began = time.perf_counter()
            saved = self.checkpoints.save(self.state, best=improved)
            if last and not saved:
                raise StorageError(f"the last iteration's checkpoint could not be saved ({self.checkpoints.reason})")
            self.saving_seconds = time.perf_counter() - began
        if not last and self.preemption.agreed():
            raise PreemptionRequested

    def _play(self, iteration: int, batch: Batch, draws: Draws, on_episodes: OnEpisodes | None = None) -> list[Episode]:
        """Episodes of an iteration, those with partners played apart."""
        if self.partners is None:
            return self._collect(batch, draws, on_episodes)

        def play(speakers: Mapping[str, GenerationPolicy], part: Batch, places: list[int]) -> list[Episode]:
            def told(own: list[int], episodes: list[Episode]) -> None:
                assert on_episodes is not None
                on_episodes([places[place] for place in own], episodes)

            listen = None if on_episodes is None else told
            return self._collect(part, draws, listen, generator=self.generator_of(speakers))

        return self.partners.play(self.state.team, batch, iteration, play)

    def _collect(
        self,
        batch: Batch,
        draws: Draws,
        on_episodes: OnEpisodes | None = None,
        *,
        generator: Generator | None = None,
    ) -> list[Episode]:
        """Episodes of every example; raises `PreemptionRequested` on all ranks where one of them was asked to leave."""
        return collect(
            self.environments,
            self.formats,
            batch,
            generator or self.generator,
            draws,
            poll=self.preemption.poll,
            on_episodes=on_episodes,
        )

    def _baselines(
        self, iteration: int, batch: Batch, draws: Draws, episodes: Sequence[Episode], clock: Stopwatch
    ) -> Baselines:
        """What each agent's credit is measured against, where it is measured in this iteration."""
        if not measures_credit_in(self.config, iteration):
            return {}

        def replayed(agent: str) -> list[Episode]:
            return self._replayed(agent, batch, draws, episodes)

        with clock("credit"):
            reward = self.preemption.interruptible(self.reward)
            return baselines(self.config, iteration, reward, episodes, list(self.state.team), replayed)

    def _replayed(self, agent: str, batch: Batch, draws: Draws, episodes: Sequence[Episode]) -> list[Episode]:
        """The same episodes, with the same luck, had one agent written as it did before training."""
        assert self.initial is not None
        generator = Substituted(self.generator, agent, self.initial, episodes)
        return collect(self.environments, self.formats, batch, generator, draws, poll=self.preemption.poll)

    def _rows(self, episodes: Sequence[Episode]) -> dict[str, Rollout]:
        return {
            name: to_rows(episodes, name, device=self.device, filtered=agent.rollout.filters)
            for name, agent in self.config.task.agents.items()
        }

    def _scored_greedy(
        self, episodes: Sequence[Episode], moments: Mapping[str, ScoreMoments], clock: Stopwatch
    ) -> dict[str, tuple[Rollout, Scores]]:
        """What every agent says greedily about the same examples, scored as the sampled episodes were."""
        with clock("score"):
            reward = self.preemption.interruptible(self.reward)
            weights = reward_weights(self.config)
            scored = score(
                reward, episodes, self.config.reward, moments, weights=weights, device=self.device, observe=False
            )
        return {name: (rows, scored.scores[name]) for name, rows in self._rows(episodes).items()}

    def _warn_of_failed_rows(self, reason: str | None) -> None:
        """Say once in a run why rows have no reward."""
        if reason is not None:
            self._say_once("failed_rows", reason)

    def _say_once(self, rule: str, text: str) -> None:
        """A warning that is said once in a run, under the name by which `run.json` keeps it. Collective."""
        with distributed.failing_together():
            self.console.warn(self.run.note({rule: text}))

    def _look_at_payments(self, iteration: int, episodes: Sequence[Episode]) -> None:
        """Say so where a protocol of the user's pays and the reward does not ask about it, or the other way round."""
        task = self.config.task
        if not isinstance(task, ConversationConfig) or task.protocol in PROTOCOLS:
            return
        played = [episode for episode in episodes if episode.failure is None]
        if distributed.any_rank(any(paid for episode in played for paid in episode.rewards)):
            if not reads_payments(self.reward):
                self._say_once(
                    "unread_payments",
                    f"task.protocol={task.protocol} pays agents, and reward={self.config.reward.kind.value} does not "
                    "look at it; use reward=environment, or return no rewards",
                )
        elif iteration == 0 and isinstance(self.reward, EnvironmentReward) and distributed.any_rank(bool(played)):
            self._say_once(
                "nobody_paid",
                f"reward=environment is what is paid, and task.protocol={task.protocol} paid nobody in the "
                f"{self.config.rollout.buffer_size} episodes of the first iteration; let it return what agents are "
                "paid, 0.0 included, or use another reward",
            )

    def _look_at_joint_actions(self, episodes: Sequence[Episode]) -> None:
        """Say so where no two policies act at the same step: no factor is ever another than 1."""
        if not acts_together(self.state.team, episodes):
            self._say_once(
                "no_joint_actions",
                "team.update_order=sequential corrects for what others do at the same step, and in the first "
                "iteration no two policies acted at once: every factor was 1, as without it",
            )

    def _evaluate(self) -> Evaluation:
        settings = self.config.evaluation
        return evaluate(
            lambda batch, greedy: self._collect(batch, Draws(seed=settings.seed, purpose="evaluation", greedy=greedy)),
            self.task,
            self.preemption.interruptible(self.reward),
            self.config,
        )

    def _evaluate_first(self) -> None:
        found = self._evaluate()
        with distributed.failing_together():
            self.run.log({"iteration": 0} | prefixed("eval", found.metrics))
            self._note_evaluation(0, found)
            self.checkpoints.initial_is_best()
            self.state.progress.metrics_bytes = self.run.metrics_size()
        self._reached()

    def _note_evaluation(self, iteration: int, found: Evaluation) -> bool:
        """Record and show held-out scores; True where they are the best so far."""
        primary_metric = self.config.task.primary_metric
        self.run.log_samples(f"eval_{iteration:08d}", found.samples)
        self.console.evaluation(iteration, found.metrics, primary_metric)
        return self.run.evaluated(iteration, primary_metric, found.metrics)
