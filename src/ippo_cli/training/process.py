"""One rank of a run, from settings to exit: prepared, built, restored, trained, and ended in order."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy
import torch
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from ippo_cli.agents.agent import Agent
from ippo_cli.agents.build import build_agents, initial_weights
from ippo_cli.algorithms.targets import Algorithm
from ippo_cli.config.arithmetic import Arithmetic, arithmetic
from ippo_cli.config.errors import Preempted, PreflightError
from ippo_cli.config.schema import Config, Device
from ippo_cli.engine import distributed
from ippo_cli.rewards.build import build_reward
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rollout.collect import context_limit
from ippo_cli.tasks.prompts import PromptStream, chat_template
from ippo_cli.tasks.task import Task, load_task
from ippo_cli.training.checkpoint import Checkpoints, Progress, State, rng_state
from ippo_cli.training.console import Console
from ippo_cli.training.folder import lock, reserve_folder, take_effect
from ippo_cli.training.run import Run, RunState, state_before
from ippo_cli.training.signals import Departure
from ippo_cli.training.trainer import Trainer


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
        chat_template=chat_template(config.task),
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
