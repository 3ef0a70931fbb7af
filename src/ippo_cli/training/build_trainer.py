"""Builds a rank's trainer: initial weights, checks, models, resume, and the parts that collect episodes."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from ippo_cli.agents.build import build_team
from ippo_cli.agents.initial import check_vocabularies, initial_weights, pin_revisions
from ippo_cli.config.credit import needs_replays
from ippo_cli.config.errors import Preempted, PreflightError, convert_storage_errors
from ippo_cli.config.placement import read_placement
from ippo_cli.config.schema import Config, Mode
from ippo_cli.config.time_limit import resolve_deadline
from ippo_cli.engine import distributed, progress
from ippo_cli.engine.launchers import job_end_time
from ippo_cli.engine.rank_group import RankGroup
from ippo_cli.planning.prepare import Prepared, Purpose, load_task_and_reward, prepare
from ippo_cli.planning.remedies import find_memory_problem
from ippo_cli.planning.resources import this_machine
from ippo_cli.planning.served_agents import check_servers
from ippo_cli.reporting.console import Console
from ippo_cli.reporting.run_log import RunLog
from ippo_cli.reporting.training_warnings import WINDOW
from ippo_cli.rewards.contract import RewardContext, RewardFunction, close_reward, prepare_reward
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.placed import place_reward
from ippo_cli.rollout.combined_generator import build_with_served_agents
from ippo_cli.rollout.engine import EngineResources
from ippo_cli.rollout.generator import Generator, Poll, build_generator, sampling_settings
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.rollout.routed_generator import RoutedGenerator
from ippo_cli.runs.deadline import TimeLimit
from ippo_cli.runs.faults import fault_point
from ippo_cli.runs.folder import activate_resumed_config, check_iterations_left, describe_versions, display_path
from ippo_cli.runs.random_streams import rng_state
from ippo_cli.runs.replay import read_earlier_rows, read_evaluate_at, read_sample_at
from ippo_cli.runs.signals import PreemptionHandler
from ippo_cli.tasks.task import Task, can_reuse_prefix, make_environment_pool
from ippo_cli.training.checkpoint import (
    CheckpointManager,
    TrainingProgress,
    TrainingState,
    find_episode_files,
    has_optimizers,
)
from ippo_cli.training.evaluate_critics import CriticEvaluator
from ippo_cli.training.experience import ExperienceCollector
from ippo_cli.training.methods.build import build_methods
from ippo_cli.training.methods.method import Method
from ippo_cli.training.reward_calls import RewardCaller
from ippo_cli.training.targets import Algorithm
from ippo_cli.training.trainer import Trainer

PROCESS_STARTED_AT = time.time()  # approximately: the time of this import


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """A run as one rank sees it: configuration, folder, log, display, signals and device."""

    config: Config
    folder: Path
    log: RunLog
    console: Console
    preemption: PreemptionHandler
    device: torch.device
    is_resumed: bool


def build_trainer(context: RunContext) -> Trainer:
    """Build and check all parts of a run; a resumed run is restored from its newest intact checkpoint."""
    with ExitStack() as unused:  # close the reward's processes if building the trainer fails
        task, reward = load_task_and_reward(
            context.config,
            distributed.world_size(),
            Purpose.training,
            lambda text: context.console.print_warnings([text]),
        )
        unused.callback(close_reward, reward)
        trainer = _build_from_task(context, task, reward)
        group = distributed.rank_group(read_placement(context.config, distributed.world_size()).ranks["reward"])
        if not group.is_world:
            place_reward(reward, group)
        with distributed.synchronize_errors():
            if group.is_member:
                prepare_reward(reward, RewardContext(device=context.device, folder=context.folder / "reward"))
        unused.pop_all()
    return trainer


def _build_from_task(context: RunContext, task: Task, reward: RewardFunction) -> Trainer:
    console = context.console
    weights = _create_initial_weights(context, task)
    context = replace(context, config=pin_revisions(context.config, weights, context.folder))
    check_vocabularies(context.config, weights)
    prepared = prepare(
        context.config,
        distributed.world_size(),
        context.device.type,
        task,
        reward,
        weights=weights,
        report=console.print_line,
    )
    _check_memory(prepared, console, is_resumed=context.is_resumed)
    with distributed.synchronize_errors():
        check_servers(prepared.config, prepared.specs.served)
    checkpoints = _build_checkpoint_manager(context, prepared)
    checkpoint = _find_checkpoint(context, prepared, checkpoints)
    state = _build_state(context, weights, checkpoint)
    fault_point("init")
    methods = build_methods(context.config, context.folder, state.algorithm, prepared.schedule, context.device)
    state.methods = methods
    if checkpoint is not None:
        _restore(context, state, methods, checkpoints, checkpoint, prepared.batch_sizes.last_iteration)
    _record_start(context, state, has_optimizers=checkpoint is None or has_optimizers(checkpoint))
    console.print_warnings(context.log.record_warnings(prepared.warnings))
    collector = _build_collector(context, prepared, state, methods)
    if checkpoint is not None and (files := find_episode_files(checkpoint)):
        state.collection = collector.read_collection(files, state.progress.iteration)
    recent = [*read_earlier_rows(context.folder), *context.log.read_last_rows(WINDOW)]
    return Trainer(
        config=context.config,
        plan=prepared.batch_sizes,
        task=prepared.task,
        collector=collector,
        methods=methods,
        state=state,
        run=context.log,
        checkpoints=checkpoints,
        console=console,
        preemption=context.preemption,
        time_limit=_build_time_limit(context.config, prepared.checkpoint_bytes, recent),
        recent_rows=deque(recent, WINDOW),
        evaluate_at=read_evaluate_at(context.folder),
        sample_at=read_sample_at(context.folder),
        critic_evaluator=CriticEvaluator(config=context.config, task=prepared.task, collector=collector)
        if context.config.mode is Mode.critic
        else None,
    )


def _create_initial_weights(context: RunContext, task: Task) -> dict[str, Path | str]:
    """The initial weights by policy, created now if they are local."""

    def report_warm_start(name: str, step: int, steps: int, loss: float) -> None:
        progress.heartbeat()
        context.console.show_progress(f"warm start of {name}", step, steps)
        if context.preemption.is_requested:  # on rank 0, which creates the model; other ranks receive the error
            raise Preempted(f"stop requested during the warm start of {name}: nothing was trained yet; start again")

    return initial_weights(context.config, task, context.folder, report_warm_start, context.console.print_line)


def _check_memory(prepared: Prepared, console: Console, *, is_resumed: bool) -> None:
    """Raise `PreflightError` on all ranks if one machine has too little memory for its ranks' models."""
    hostname = socket.gethostname()
    machine = this_machine(prepared.memory.highest.device, distributed.gather_objects(hostname).count(hostname))
    with distributed.synchronize_errors():
        own_problem = find_memory_problem(prepared, machine, is_resumed=is_resumed)
    for problem in distributed.gather_objects(own_problem):
        if problem is not None and problem.is_certain:
            raise PreflightError(problem.text)
    if own_problem is not None:
        console.print_line(f"warning: {own_problem.text}")


def _build_checkpoint_manager(context: RunContext, prepared: Prepared) -> CheckpointManager:
    """The run's checkpoint manager, after a check of the disk space."""
    checkpoints = CheckpointManager(context.folder, context.config.checkpoint)
    checkpoints.check_disk_space(int(prepared.checkpoint_bytes), prepared.batch_sizes.num_iterations)
    return checkpoints


def _find_checkpoint(context: RunContext, prepared: Prepared, checkpoints: CheckpointManager) -> Path | None:
    """The checkpoint from which a resumed run continues; None for a new run."""
    checkpoint = checkpoints.find_newest_intact() if context.is_resumed else None
    if checkpoint is not None:
        check_iterations_left(checkpoint, context.config, prepared.batch_sizes.last_iteration)
    return checkpoint


def _build_state(context: RunContext, weights: dict[str, Path | str], checkpoint: Path | None) -> TrainingState:
    """A run's state before its first iteration; a checkpoint without optimizers gives the team's weights."""
    config = context.config
    saved = None if checkpoint is None or has_optimizers(checkpoint) else checkpoint
    team = build_team(config, weights, context.device, saved)
    return TrainingState(
        team=team,
        algorithm=Algorithm.from_config(config, config.seed),
        moments={name: ScoreMoments() for name in team.names},
        progress=TrainingProgress(),
        run=context.log.state,
        rng=rng_state(),
    )


def _restore(
    context: RunContext,
    state: TrainingState,
    methods: Sequence[Method],
    checkpoints: CheckpointManager,
    checkpoint: Path,
    last_iteration: int,
) -> None:
    """Restore the state from a checkpoint, drop later rows and samples, and activate the resumed configuration."""

    def activate() -> None:
        assert state.progress.metrics_bytes is not None  # rows are written before a checkpoint
        with convert_storage_errors(str(context.folder)):
            context.log.drop_later_iterations(state.progress.metrics_bytes, state.progress.iteration)
            activate_resumed_config(context.folder)

    checkpoints.load(state, checkpoint)
    if not has_optimizers(checkpoint):
        context.console.print_line(
            f"{display_path(checkpoint)} has no optimizer states: optimizers are reinitialised, weights are restored"
        )
    for method in methods:
        method.check_resume()
    distributed.run_on_main(activate)
    is_over = state.progress.iteration >= last_iteration
    left = ": no iteration is left, so nothing is trained" if is_over else ""
    context.console.print_line(f"resumed from {display_path(checkpoint)}{left}")


def _record_start(context: RunContext, state: TrainingState, *, has_optimizers: bool) -> None:
    """Record this start in the run's history, with what equality to the byte depends on."""
    environment = describe_versions() | {
        "world_size": distributed.world_size(),
        "threads": torch.get_num_threads(),
        "device": context.device.type,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "optimizers": has_optimizers,
    }
    if context.device.type == "cuda":
        environment["gpu"] = torch.cuda.get_device_name(context.device)
    state.progress.history = context.log.record_start(state.progress.history, state.progress.iteration, environment)


def _build_collector(
    context: RunContext, prepared: Prepared, state: TrainingState, methods: Sequence[Method]
) -> ExperienceCollector:
    """The collector that plays and scores a run's episodes."""
    config, team = context.config, state.team
    build_generator = partial(_build_generator, context)
    initial_generator = (
        build_generator({name: agent.initial_agent for name, agent in team.items()}) if needs_replays(config) else None
    )
    environments, generator = make_environment_pool(config.task), build_generator(team.generation_policies)
    return ExperienceCollector(
        config=config,
        team=team,
        schedule=prepared.schedule,
        environments=environments,
        formats=prepared.formats,
        generator=generator,
        initial_generator=initial_generator,
        build_generator=build_generator,
        methods=methods,
        rewards=RewardCaller(config=config, reward=prepared.reward, agents=team.names, preemption=context.preemption),
        preemption=context.preemption,
        device=context.device,
        num_ahead=prepared.batch_sizes.num_iterations if config.rollout.collects_ahead else 0,
        report_waiting=partial(context.console.show_progress, "collecting episodes"),
    )


def _build_generator(context: RunContext, policies: Mapping[str, GenerationPolicy]) -> Generator:
    """The generator for these policies; between decode steps it shows progress and polls for preemption."""

    def report_progress(agent: str, done: int, rows: int) -> None:
        progress.heartbeat()
        context.console.show_progress(f"generating responses of {agent}", done, rows)
        fault_point("generate")
        context.preemption.raise_if_requested()

    config, sampling = context.config, sampling_settings(context.config.task)
    build = partial(_build_local_generator, context, poll=report_progress)
    return build_with_served_agents(policies, config.rollout, sampling, build, report_progress)


def _build_local_generator(context: RunContext, policies: Mapping[str, GenerationPolicy], poll: Poll) -> Generator:
    """The generator for policies on ranks of this run."""
    config = context.config
    devices = read_placement(config, distributed.world_size()).rollout_devices or None
    by_group: dict[RankGroup, dict[str, GenerationPolicy]] = {}
    for name, policy in policies.items():
        by_group.setdefault(policy.group, {})[name] = policy
    generators: dict[RankGroup, Generator] = {}
    for group, own in by_group.items():
        if group.is_member:
            with group.activate():
                generators[group] = build_generator(
                    own,
                    config.rollout,
                    sampling_settings(config.task),
                    poll,
                    continues=can_reuse_prefix(config),
                    resources=EngineResources(log_folder=context.folder / "logs", devices=devices),
                )
    if all(group.is_world for group in by_group):
        return generators[distributed.world_group()]
    return RoutedGenerator(policies, config.rollout, generators)


def _build_time_limit(config: Config, checkpoint_bytes: float, recent: Sequence[Mapping[str, float]]) -> TimeLimit:
    """The run's time limit; rank 0's clock and job information decide for all ranks."""
    limit = (
        resolve_deadline(config.checkpoint.save_deadline, PROCESS_STARTED_AT, job_end_time)
        if distributed.is_main()
        else None
    )
    return TimeLimit(limit, checkpoint_bytes, recent)
