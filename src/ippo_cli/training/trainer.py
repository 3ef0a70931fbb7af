"""The training loop: experience, targets, update; then evaluation, logging and checkpoint."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from ippo_cli.config.batch_sizes import BatchSizes
from ippo_cli.config.critic_fitting import primary_metric
from ippo_cli.config.errors import IppoError, NonFiniteError, Preempted, PreemptionRequested, StorageError
from ippo_cli.config.schema import Config
from ippo_cli.engine import distributed, progress
from ippo_cli.engine.host_memory import release_free_memory
from ippo_cli.reporting.console import Console
from ippo_cli.reporting.history_metrics import history_metrics
from ippo_cli.reporting.iteration_metrics import add_prefix, iteration_row, timing_metrics
from ippo_cli.reporting.per_turn_metrics import logged_turn_counts, per_turn_metrics
from ippo_cli.reporting.run_log import RunLog
from ippo_cli.reporting.staleness import staleness_metrics
from ippo_cli.reporting.stopwatch import Stopwatch, profile_iteration
from ippo_cli.reporting.tool_metrics import tool_metrics
from ippo_cli.reporting.training_warnings import training_warnings
from ippo_cli.rollout.generator import SamplingStream
from ippo_cli.runs.deadline import TimeLimit
from ippo_cli.runs.faults import fault_point
from ippo_cli.runs.folder import resume_command
from ippo_cli.runs.signals import PreemptionHandler
from ippo_cli.tasks.task import Task, agents_with_tools, max_turns_by_agent
from ippo_cli.training.checkpoint import CheckpointManager, TrainingState
from ippo_cli.training.evaluate import Evaluation, evaluate
from ippo_cli.training.evaluate_critics import CriticEvaluator
from ippo_cli.training.experience import CollectResult, ExperienceCollector
from ippo_cli.training.experience_warnings import experience_warnings
from ippo_cli.training.methods.method import Method, Outcome
from ippo_cli.training.resume_point import ResumePoint
from ippo_cli.training.row_inputs import group_by_author
from ippo_cli.training.stopping import find_stop_reason
from ippo_cli.training.team_update import PlacedUpdates, update_team
from ippo_cli.training.training_samples import buffer_distributions, training_samples
from ippo_cli.training.update import UpdateStats
from ippo_cli.types import Batch, Episode, Experience, StepContext, Targets


@dataclass(kw_only=True)
class Trainer:
    """Trains one run on one rank."""

    config: Config
    plan: BatchSizes
    task: Task
    collector: ExperienceCollector
    methods: Sequence[Method]
    state: TrainingState
    run: RunLog
    checkpoints: CheckpointManager
    console: Console
    preemption: PreemptionHandler
    time_limit: TimeLimit  # rank 0's limit decides for all ranks
    recent_rows: deque[Mapping[str, float]]  # the last rows of the log, for warnings
    critic_evaluator: CriticEvaluator | None = None  # with mode=critic
    evaluate_at: Collection[int] | None = None  # iterations to evaluate after; None: those of `evaluation.every`
    sample_at: Collection[int] | None = None  # iterations with training samples; None: those of `tracker.samples_every`
    saving_seconds: float = 0.0  # of the last checkpoint, logged with the next row

    def __post_init__(self) -> None:
        self.max_turns = max_turns_by_agent(self.config.task)
        self.preemption.deadline = self.time_limit.deadline
        self._set_resume_point()

    def train(self) -> None:
        """Train until the last iteration. On preemption, saves and raises `Preempted`."""
        try:
            self._iterate()
        except PreemptionRequested:
            if not self.save_resume_point():
                reason = self.checkpoints.failure_reason
                raise StorageError(f"stop requested, but the checkpoint could not be saved ({reason})") from None
            why = "the time limit is near" if self.preemption.is_out_of_time else "stop requested"
            saved = f"{why}; saved after iteration {self.resume_point.iteration}"
            raise Preempted(f"{saved}; resume with: {resume_command(self.run.folder)}") from None

    def _iterate(self) -> None:
        if "first" not in self.run.state.evaluation:
            self._evaluate_initial()
        if self.state.progress.row is not None:
            self._finish_iteration()
        # Profile the second iteration of this process: the first one includes warm-up costs.
        warm = min(self.state.progress.iteration + 1, self.plan.last_iteration - 1)
        while not self._is_last(iteration := self.state.progress.iteration):
            is_profiled = self.config.tracker.profile and iteration == warm
            with (
                profile_iteration(self.run.folder, iteration + 1, self.console.print_line)
                if is_profiled
                else nullcontext()
            ):
                experience, targets = self.step()
            self._show_training_samples(experience, targets)
            del experience, targets  # free their memory before the evaluation
            self._finish_iteration()
        if (reason := self._find_stop_reason(self.state.progress.iteration)) is not None:
            self.console.print_line(reason)

    def _set_resume_point(self) -> None:
        self.resume_point = ResumePoint(self.state)

    def can_save(self, error: BaseException) -> bool:
        """Whether the resume point can and should be saved after this error.

        False if weights have changed since, may be corrupt, or are the initial ones, or if saving would fail again.
        """
        corrupt = isinstance(error, NonFiniteError) or distributed.lost_connection(error)
        hopeless = isinstance(error, StorageError) or self.preemption.is_interrupted_twice
        return not (corrupt or hopeless or self.resume_point.has_changed_weights) and self.resume_point.iteration > 0

    def save_resume_point(self) -> bool:
        """Save the last resume point; False if that failed. Collective."""
        self.resume_point.restore()
        try:
            self._wait_for_episodes()
        except IppoError as error:
            self.console.print_line(f"the next iteration's episodes are lost and will be sampled again ({error})")
            self.state.collection = None
        if self.state.progress.metrics_bytes is None and self.state.progress.row is None:  # no later row exists
            self.state.progress.metrics_bytes = self.run.durable_metrics_bytes()
        return self.checkpoints.save(self.state)

    def _wait_for_episodes(self) -> None:
        """Wait for the next iteration's episodes, if they are being collected. Collective."""
        if self.state.collection is not None:
            self.state.collection.wait(self.collector.report_waiting)

    def free(self) -> None:
        """Release the engines' memory and hooks; the trainer cannot be used afterwards."""
        self.collector.close()
        self.state.team.release_engines()

    def step(self) -> tuple[Experience, dict[str, Targets]]:
        """Run the next training iteration; returns its experience and the targets by agent.

        Stores the metrics in `state.progress.row`; does not evaluate, log or save.
        """
        state, clock, iteration = self.state, Stopwatch(self.console.show_phase), self.state.progress.iteration
        team, algorithm = state.team, state.algorithm
        context = StepContext(seed=self.config.seed, iteration=iteration, num_iterations=self.plan.num_iterations)
        for method in self.methods:
            method.begin(team, iteration, clock)
        planned = self.collector.schedule.first_position
        start = planned(iteration) + state.progress.extra_prompts
        collected = self.collector.collect_iteration(iteration, state.moments, clock, state.collection, start)
        release_free_memory()
        experience = collected.experience
        self._warn_about_experience(collected, iteration)
        with clock("targets"):
            fault_point("targets")
            for method in self.methods:
                method.prepare_values(team, experience)
            all_targets, next_state = algorithm.compute_all_targets(
                team, experience, after_agent=self.preemption.raise_if_any_rank_requested
            )
            release_free_memory()
        targets = {source.agent: own for source, own in all_targets.items() if not source.is_shared}
        self.resume_point.has_changed_weights = True
        with clock("update"):
            turns = logged_turn_counts(team, experience.episodes, self.max_turns, self.config.tracker.turns)
            updates = PlacedUpdates(
                team=team,
                experience=experience,
                context=context,
                turns=turns,
                show_phase=self.console.show_phase,
                shared=group_by_author(all_targets),
                methods=self.methods,
            )
            stats = update_team(updates, targets, self.config)
            team.update_references(iteration + 1)
        if collected.following is not None and self.config.rollout.updates_in_flight:
            with clock("rollout"):
                collected.following.transfer_weights(iteration + 1)
        row = self._build_row(collected, targets, stats, turns, clock)
        outcome = Outcome(
            team=team,
            buffer=collected.buffer,
            experience=experience,
            targets=all_targets,
            state_before=algorithm.state,
            state_after=next_state,
        )
        for method in self.methods:
            row |= method.metrics(outcome)
        row |= algorithm.part_metrics(next_state)
        self._commit(collected, outcome, row)
        return experience, targets

    def _commit(self, collected: CollectResult, outcome: Outcome, row: dict[str, float]) -> None:
        """Complete an iteration: its state, metrics and resume point. Collective."""
        state, iteration = self.state, self.state.progress.iteration
        self.saving_seconds = 0.0
        state.algorithm.state, state.moments = outcome.state_after, collected.moments
        state.progress.iteration, state.progress.row, state.collection = iteration + 1, row, collected.following
        for method in self.methods:
            method.commit(self.collector, outcome)
        following = self.collector.schedule.first_position(iteration + 1)
        state.progress.extra_prompts = collected.buffer.prompts.end - following
        self._set_resume_point()
        progress.record_iteration()
        for method in self.methods:
            method.clean_up()

    def _build_row(
        self,
        collected: CollectResult,
        targets: Mapping[str, Targets],
        stats: list[UpdateStats],
        turns: Mapping[str, int],
        clock: Stopwatch,
    ) -> dict[str, float]:
        """The metrics of the current iteration. Collective."""
        team, experience, iteration = self.state.team, collected.experience, self.state.progress.iteration
        coefs = self.state.algorithm.active_kl_coefs(team)
        row = iteration_row(iteration + 1, team, experience, targets, coefs, stats, self.max_turns)
        row |= per_turn_metrics(team, experience, targets, turns)
        row |= tool_metrics(agents_with_tools(self.config.task), experience.episodes)
        started = self.state.collection
        row |= timing_metrics(
            row,
            team.names,
            self.config.rollout.buffer_size,
            clock.seconds,
            self.saving_seconds,
            None if started is None else started.seconds,
            collected.buffer.generated_tokens,
        )
        if started is not None:
            row |= staleness_metrics(team.names, experience.episodes, started.iterations, iteration)
        row["time/environments"] = collected.environment_seconds
        row |= self.collector.generator.take_metrics()
        return row

    def _warn_about_experience(self, collected: CollectResult, iteration: int) -> None:
        """Print warnings about an iteration's experience, each once per run. Collective."""
        episodes = collected.experience.episodes
        unusual = experience_warnings(
            self.config, self.state.team, self.collector.rewards.reward, episodes, collected.failure, iteration
        )
        if unusual:
            with distributed.synchronize_errors():
                self.console.print_warnings(self.run.record_warnings(unusual, iteration + 1))

    def _show_training_samples(self, experience: Experience, targets: Mapping[str, Targets]) -> None:
        """Write and display the first episodes of an iteration where that is due. Collective."""
        iteration = self.state.progress.iteration
        if self._needs_samples(iteration):
            samples = training_samples(self.state.team, experience, targets, self.config)
            with distributed.synchronize_errors():
                self.run.log_samples(f"train_{iteration:08d}", samples)
                self.run.log_distributions(iteration, buffer_distributions(experience, targets))
                self.console.show_samples(samples)

    def _needs_samples(self, iteration: int) -> bool:
        if self.sample_at is not None:
            return iteration in self.sample_at
        every = self.config.tracker.samples_every
        # The first and the last iteration too: a short run would have no samples.
        return every > 0 and (iteration % every == 0 or iteration in (1, self.plan.num_iterations))

    def _finish_iteration(self) -> None:
        """Evaluate if due, log, display and save: the steps of an iteration that do not affect training."""
        iteration, row = self.state.progress.iteration, self.state.progress.row
        assert row is not None
        found = None
        if self._needs_evaluation(iteration, last=iteration == self.plan.last_iteration):
            began = time.perf_counter()
            found = self._evaluate()
            row = row | add_prefix("eval", found.metrics) | {"time/evaluation": time.perf_counter() - began}
        for method in self.methods:
            for name, rows in method.tables().items():
                self.run.write_table(name, rows)
        with distributed.synchronize_errors():
            row = row | history_metrics([*self.recent_rows, row], self.config)
            self.run.log_row(row)
            self.console.show_iteration(row, self.plan.last_iteration)
            self.recent_rows.append(row)
            self.console.print_warnings(self.run.record_warnings(training_warnings(self.recent_rows, self.config)))
            improved = found is not None and self._record_evaluation(iteration, found)
            self.state.progress.history = self.run.record_iteration(iteration)
            self.state.progress.row, self.state.progress.metrics_bytes = None, self.run.durable_metrics_bytes()
        self._set_resume_point()
        last = self._is_last(iteration)
        if self.checkpoints.is_due(iteration, last=last, improved=improved):
            self._wait_for_episodes()
            began = time.perf_counter()
            self.console.show_phase("save")
            saved = self.checkpoints.save(self.state, best=improved)
            if last and not saved:
                raise StorageError(
                    f"the last iteration's checkpoint could not be saved ({self.checkpoints.failure_reason})"
                )
            self.saving_seconds = time.perf_counter() - began
            self.time_limit.record_save(self.saving_seconds)
        if not last:
            self.time_limit.record_iteration(row)
            self.preemption.deadline = self.time_limit.deadline
            if self.time_limit.next_iteration_exceeds_limit():
                self.preemption.request_stop()
            self.preemption.raise_if_any_rank_requested()

    def _needs_evaluation(self, iteration: int, *, last: bool) -> bool:
        if self.evaluate_at is not None:
            return iteration in self.evaluate_at
        every = self.config.evaluation.every
        return last or (every > 0 and iteration % every == 0)

    def _evaluate(self) -> Evaluation:
        self._wait_for_episodes()  # engines and environments serve one collection at a time
        self.console.show_phase("evaluation")
        if self.critic_evaluator is not None:
            return self.critic_evaluator.evaluate(self.state)
        settings = self.config.evaluation

        def play(batch: Batch, greedy: bool) -> list[Episode]:
            return self.collector.play_episodes(
                batch, SamplingStream(seed=settings.seed, purpose="evaluation", greedy=greedy)
            )

        return evaluate(play, self.task, self.collector.rewards.interruptible, self.config)

    def _evaluate_initial(self) -> None:
        found = self._evaluate()
        with distributed.synchronize_errors():
            self.run.log_row({"iteration": 0} | add_prefix("eval", found.metrics))
            if self._record_evaluation(0, found):
                self.checkpoints.mark_initial_best()
            self.state.progress.history = self.run.record_iteration(0)
            self.state.progress.metrics_bytes = self.run.durable_metrics_bytes()
        self._set_resume_point()

    def _record_evaluation(self, iteration: int, found: Evaluation) -> bool:
        """Record and display held-out scores; True if they are the best so far."""
        metric = primary_metric(self.config)
        self.run.log_samples(f"eval_{iteration:08d}", found.samples)
        self.console.show_evaluation(iteration, found.metrics, metric)
        if math.isnan(found.metrics[metric]):
            warning = (
                f"task.primary_metric={metric} has no value in an evaluation: it is never the best, and "
                "evaluation.patience counts it; use a metric of all rows"
            )
            self.console.print_warnings(self.run.record_warnings({"unscored_evaluation": warning}, iteration))
        return self.run.record_evaluation(iteration, metric, found.metrics)

    def _is_last(self, iteration: int) -> bool:
        return iteration >= self.plan.last_iteration or self._find_stop_reason(iteration) is not None

    def _find_stop_reason(self, iteration: int) -> str | None:
        """Why the run ends early; None if only some iterations are evaluated, when a run is verified. Collective."""
        if self.evaluate_at is not None:
            return None
        return find_stop_reason(self.config, self.run, self.recent_rows, iteration)
