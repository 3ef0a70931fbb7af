"""The corridor: prompts, rollout, score, targets, update, log, checkpoint, once per iteration in this order."""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy
import torch
from torch.profiler import record_function
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from ippo_cli.agents.agent import Agent
from ippo_cli.agents.build import build_agents, initial_weights
from ippo_cli.algorithms.targets import Algorithm
from ippo_cli.config.arithmetic import Arithmetic, arithmetic
from ippo_cli.config.errors import Preempted, PreflightError, StorageError
from ippo_cli.config.schema import Config, Device, JsonlConfig
from ippo_cli.engine import distributed
from ippo_cli.rewards.build import build_reward
from ippo_cli.rewards.contract import RewardFunction
from ippo_cli.rewards.early import Said, overlapped
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.score import score
from ippo_cli.rollout.collect import collect, context_limit
from ippo_cli.tasks.prompts import PromptStream
from ippo_cli.tasks.task import Task, load_task
from ippo_cli.training.checkpoint import Checkpoints, Progress, State, rng_state
from ippo_cli.training.console import Console
from ippo_cli.training.evaluate import Evaluation, evaluate, sample_rows
from ippo_cli.training.folder import lock, reserve_folder, take_effect
from ippo_cli.training.metrics import (
    greedy_metrics,
    peak_memory_mib,
    prefixed,
    rollout_metrics,
    sampler_gap,
    target_metrics,
)
from ippo_cli.training.profile import PREFIX, profiled
from ippo_cli.training.run import Run, RunState, state_before
from ippo_cli.training.signals import Departure, Leaving
from ippo_cli.training.update import Clock, update
from ippo_cli.types import Example, PromptBatch, Rollout, Scores


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
    prompts: PromptStream
    reward: RewardFunction
    state: State
    run: Run
    checkpoints: Checkpoints
    console: Console
    departure: Departure
    saving_seconds: float = 0.0  # of the checkpoint that was last written, to be logged with the next row

    def train(self) -> None:
        """Walk the corridor until the last iteration. Raises `Preempted` after saving when asked to leave."""
        try:
            if "first" not in self.run.state.evaluation:
                self._evaluate_first()
                self._reached()
            if self.state.progress.row is not None:
                self._finish_iteration()
            # Profiled, where asked for, is the first iteration of this process that finds everything warm.
            warm = min(self.state.progress.iteration + 1, self.plan.num_iterations - 1)
            while (iteration := self.state.progress.iteration) < self.plan.num_iterations:
                asked = self.config.tracker.profile and iteration == warm
                with profiled(self.run.folder, iteration + 1, self.console.say) if asked else nullcontext():
                    self._walk(iteration)
                self._reached()
                self._finish_iteration()
        except Leaving:
            if not self.checkpoints.save(self.state):
                raise StorageError("asked to leave, and the checkpoint could not be saved") from None
            raise Preempted(f"asked to leave; saved after iteration {self.state.progress.iteration}") from None

    def _reached(self) -> None:
        """A point to resume from: what is begun after it and abandoned is done again, with the same random numbers."""
        self.state.rng = rng_state()

    def free(self) -> None:
        """Give the engines' memory and hooks back; the trainer cannot be used afterwards."""
        for agent in self.state.agents.values():
            for learner in agent.learners:
                learner.engine.destroy()

    def _walk(self, iteration: int) -> None:
        """One pass of the corridor, up to the row of metrics that it leaves."""
        agents, algorithm, config, clock = self.state.agents, self.state.algorithm, self.config, Stopwatch()
        now = Clock(seed=config.seed, iteration=iteration, num_iterations=self.plan.num_iterations)
        batch = self.prompts.batch(iteration, distributed.rank(), distributed.world_size())
        with overlapped(self.reward, _examples(batch), list(agents), config.reward.overlap_rows) as (reward, said):
            with clock("rollout"):
                sampled = self._collect(batch, seed=config.seed, purpose=f"train/{iteration}", said=said)
            with clock("score"):
                scores = score(reward, batch, sampled, config.reward, self.state.moments)
        greedy = self._greedy(batch, clock) if algorithm.needs_greedy else {}
        rollouts = sampled
        if config.rollout.recompute_logprobs:
            with clock("logprobs"):
                rollouts = {name: agents[name].rescored(sampled[name]) for name in agents}
        coefs = algorithm.kl_coefs(agents)
        with clock("targets"):
            targets = algorithm.targets(agents, batch, rollouts, scores, greedy)
        with clock("update"):
            stats = {name: update(agents[name], rollouts[name], targets[name], algorithm, now) for name in agents}
        row: dict[str, float] = {"iteration": iteration + 1}
        for name in agents:
            row |= prefixed(name, rollout_metrics(rollouts[name], scores[name], targets[name], coefs[name]))
            row |= prefixed(name, target_metrics(rollouts[name], targets[name], has_values=agents[name].has_values))
            row |= prefixed(name, greedy_metrics(*greedy[name]) if algorithm.needs_greedy else {})
            row |= prefixed(name, stats[name])
            if config.rollout.recompute_logprobs:
                row |= prefixed(name, sampler_gap(sampled[name], rollouts[name]))
        row |= self._pace(clock, row)
        self.state.progress.iteration, self.state.progress.row = iteration + 1, row
        every = config.tracker.samples_every
        if every and (iteration + 1) % every == 0:
            own = {name: scores[name].raw for name in scores}
            rows = sample_rows("train", batch, rollouts, own, self.prompts, config.tracker.samples)
            self.run.log_samples(f"train_{iteration + 1:08d}", rows)
            self.console.samples(rows)

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
        self.run.log(row)
        self.console.iteration(row, self.plan.num_iterations)
        improved = found is not None and self._note_evaluation(iteration, found)
        self.state.progress.row, self.state.progress.metrics_bytes = None, self.run.metrics_size()
        self._reached()
        if self.checkpoints.due(iteration, self.plan.num_iterations, improved=improved):
            began = time.perf_counter()
            self.checkpoints.save(self.state, best=improved)
            self.saving_seconds = time.perf_counter() - began
        if not last and self.departure.agreed():
            raise Leaving

    def _collect(
        self, batch: Mapping[str, PromptBatch], *, seed: int, purpose: str, greedy: bool = False,
        said: Said | None = None,
    ) -> dict[str, Rollout]:  # fmt: skip
        """Rollouts of every agent; raises `Leaving` on all ranks together where one of them was asked to leave."""
        rollouts: dict[str, Rollout] = {}
        with suppress(Leaving):  # the other ranks may not know yet
            rollouts = collect(
                self.state.agents, batch, self.config.rollout,
                seed=seed, purpose=purpose, greedy=greedy, poll=self._poll, said=said,
            )  # fmt: skip
        if self.departure.agreed():
            raise Leaving
        return rollouts

    def _greedy(self, batch: Mapping[str, PromptBatch], clock: Stopwatch) -> dict[str, tuple[Rollout, Scores]]:
        """What every agent says at its likeliest to the same prompts, scored in the same way."""
        with clock("rollout"):
            rollouts = self._collect(batch, seed=self.config.seed, purpose="", greedy=True)
        with clock("score"):
            scores = score(self.reward, batch, rollouts, self.config.reward, self.state.moments, observe=False)
        return {name: (rollouts[name], scores[name]) for name in rollouts}

    def _poll(self, agent: str, done: int, rows: int) -> None:
        self.console.progress(f"{agent} writes", done, rows)
        self.departure.poll()

    def _evaluate(self) -> Evaluation:
        return evaluate(
            lambda batch, greedy: self._collect(
                batch, seed=self.config.evaluation.seed, purpose="evaluation", greedy=greedy
            ),
            self.prompts, self.task, self.reward, self.config,
        )  # fmt: skip

    def _evaluate_first(self) -> None:
        found = self._evaluate()
        self.run.log({"iteration": 0} | prefixed("eval", found.metrics))
        self._note_evaluation(0, found)
        self.state.progress.metrics_bytes = self.run.metrics_size()

    def _note_evaluation(self, iteration: int, found: Evaluation) -> bool:
        """Record and show held-out scores; True where they are the best so far."""
        headline = self.config.task.headline
        self.run.log_samples(f"eval_{iteration:08d}", found.samples)
        self.console.evaluation(iteration, found.metrics, headline)
        return self.run.evaluated(iteration, headline, found.metrics)

    def _pace(self, clock: Stopwatch, row: Mapping[str, float]) -> dict[str, float]:
        """Times and rates of an iteration; never compared between runs."""
        total = sum(clock.seconds.values())
        seconds = clock.seconds | {"iteration": total}
        if self.saving_seconds:
            seconds["checkpoint"], self.saving_seconds = self.saving_seconds, 0.0
        size, agents = self.config.rollout.buffer_size, self.state.agents
        tokens = sum(row[f"{name}/rollout/response_length"] for name in agents) * size
        return prefixed("time", seconds) | {
            "perf/tokens_per_second": tokens / clock.seconds["rollout"],
            "perf/samples_per_second": size * len(agents) / total,
            "perf/peak_memory_mib": float(distributed.all_max(torch.tensor(peak_memory_mib()))),
        }


def _examples(batch: Mapping[str, PromptBatch]) -> list[Example]:
    """The examples of a batch: the same for every agent."""
    return next(iter(batch.values())).examples


def run_training(
    config: Config, folder: Path | None, *, resumed: bool, start: Callable[[Path], None] | None = None
) -> None:
    """Train in this process as one of its ranks. Raises an `IppoError`, or `KeyboardInterrupt`, as the run ends.

    Without a folder rank 0 reserves one, fills it with `start`, and tells the others: ranks that were started by
    somebody else agree on one folder this way.
    """
    device = prepare_process(config)
    try:
        distributed.same_everywhere(hashlib.sha256(repr((config, resumed)).encode()).hexdigest(), "configuration")
        folder = _agreed_folder(config, folder, start)
        with ExitStack() as held:
            if distributed.is_main():
                held.enter_context(lock(folder))
            departure = held.enter_context(Departure())
            console = held.enter_context(Console(config.tracker.console, list(config.task.agents)))
            _train(config, folder, console, departure, device, resumed=resumed)
    finally:
        distributed.shutdown()


def _train(
    config: Config, folder: Path, console: Console, departure: Departure, device: torch.device, *, resumed: bool
) -> None:
    run = Run(folder, config.tracker, replace(state_before(folder), state="running") if resumed else RunState())
    trainer: Trainer | None = None
    try:
        trainer = build_trainer(config, folder, run, console, departure, device, resumed=resumed)
        trainer.train()
    except Preempted as leaving:
        run.finish("preempted")
        if departure.interrupted:
            raise KeyboardInterrupt(str(leaving)) from leaving
        raise
    except BaseException as error:
        run.finish("failed", f"{type(error).__name__}: {error}")
        raise
    finally:
        if trainer is not None:
            trainer.free()
    run.finish("done")
    console.summary(folder, run.state.evaluation, run.state.wall_seconds)


def _agreed_folder(config: Config, folder: Path | None, start: Callable[[Path], None] | None) -> Path:
    if folder is None and distributed.is_main():
        folder = reserve_folder(Path(config.output_dir) / config.name)
    if start is not None and distributed.is_main():
        assert folder is not None
        start(folder)
    agreed = distributed.broadcast_object(folder)
    assert agreed is not None
    return agreed


def build_trainer(
    config: Config, folder: Path, run: Run, console: Console, departure: Departure, device: torch.device, *,
    resumed: bool,
) -> Trainer:  # fmt: skip
    """Everything a run needs, checked against each other; restored from the newest checkpoint where resumed."""
    task = load_task(config.task, config.seed)
    reward = build_reward(config.reward, config.task.agents)
    plan = arithmetic(config, distributed.world_size(), len(task.train))
    weights = initial_weights(
        config, task, folder, lambda agent, step, steps, loss: console.progress(f"{agent} warms up", step, steps)
    )
    agents = build_agents(config, weights, device)
    prompts = _prompts(config, plan, task, agents)
    algorithm = Algorithm(
        config=config.algorithm, response_budget=config.rollout.max_new_tokens,
        num_generations=config.rollout.num_generations, seed=config.seed,
    )  # fmt: skip
    state = State(
        agents=agents, algorithm=algorithm, moments={name: ScoreMoments() for name in agents}, progress=Progress(),
        run=run.state, rng=rng_state(),
    )  # fmt: skip
    checkpoints = Checkpoints(folder, config.checkpoint)
    if resumed:
        found = checkpoints.load(state)
        run.truncate_metrics(state.progress.metrics_bytes)
        if distributed.is_main():
            take_effect(folder)
        console.say(f"resumed from {found}")
    return Trainer(
        config=config, plan=plan, task=task, prompts=prompts, reward=reward, state=state, run=run,
        checkpoints=checkpoints, console=console, departure=departure,
    )  # fmt: skip


def _prompts(config: Config, plan: Arithmetic, task: Task, agents: Mapping[str, Agent]) -> PromptStream:
    """The prompt stream; that all of the run's prompts fit is known before the first one is asked."""
    prompts = PromptStream(
        task.train, config.task.agents, {name: agent.tokenizer for name, agent in agents.items()},
        seed=config.seed, prompts_per_iteration=plan.prompts_per_iteration,
        num_generations=config.rollout.num_generations, max_prompt_tokens=config.rollout.max_prompt_tokens,
        chat_template=isinstance(config.task, JsonlConfig) and config.task.chat_template,
    )  # fmt: skip
    contexts = {
        name: context_limit(agent.actor.engine.module.lm.config, config.rollout) for name, agent in agents.items()
    }
    prompts.refuse_too_long(prompts.asked(plan.num_iterations), "the training data", contexts)
    prompts.refuse_too_long(enumerate(task.held_out), "the held-out data", contexts)
    return prompts


def prepare_process(config: Config) -> torch.device:
    """Device, threads, process group, seeds."""
    wanted = config.launch.device
    cuda = torch.cuda.is_available() if wanted is Device.auto else wanted is Device.cuda
    if cuda and not torch.cuda.is_available():
        raise PreflightError("launch.device=cuda, and no CUDA device can be used here; use launch.device=cpu")
    ranks = distributed.init(device="cuda" if cuda else "cpu", timeout_s=config.launch.timeout_s)
    device = torch.device("cuda", ranks.local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(config.launch.threads or max((os.cpu_count() or 1) // ranks.world_size, 1))
    torch.use_deterministic_algorithms(config.deterministic, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # costs time, and nothing reads it
    disable_progress_bar()  # one bar per saved shard would drown the run's own display
    set_verbosity_error()  # what matters about loaded weights is checked where they are loaded
    random.seed(config.seed)
    numpy.random.seed(config.seed % 2**32)
    torch.manual_seed(config.seed)
    return device
