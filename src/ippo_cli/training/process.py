"""Runs one training process (rank): setup, model building, resume, training and shutdown."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import socket
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy
import torch
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from ippo_cli.agents.build import build_team
from ippo_cli.agents.initial import check_vocabularies, initial_weights, pin_revisions
from ippo_cli.agents.team import Team
from ippo_cli.config.batch_sizes import BatchSizes, compute_batch_sizes
from ippo_cli.config.credit import needs_replays
from ippo_cli.config.errors import INTERRUPTED, IppoError, Preempted, PreflightError, convert_storage_errors
from ippo_cli.config.model_args import check_quantization_device
from ippo_cli.config.schema import Config
from ippo_cli.config.teams import policy_by_agent
from ippo_cli.config.time_limit import resolve_deadline
from ippo_cli.engine import distributed, progress
from ippo_cli.engine.launchers import cores_per_rank, job_end_time
from ippo_cli.planning.preflight import (
    ModelSpecs,
    build_prompt_formats,
    device_kind,
    drop_too_long_rows,
    estimate_run_memory,
    example_schedule,
    memory_error,
    memory_warning,
    model_warnings,
    read_model_specs,
    required_disk_bytes,
    this_machine,
)
from ippo_cli.reporting.console import Console
from ippo_cli.reporting.run_log import RunLog, RunState, read_previous_state
from ippo_cli.reporting.trackers.build import plain_settings
from ippo_cli.reporting.training_warnings import WINDOW, startup_warnings
from ippo_cli.rewards.build import build_reward
from ippo_cli.rewards.contract import (
    RewardContext,
    RewardFunction,
    check_reward_connection,
    close_reward,
    prepare_reward,
    sample_examples,
    validate_reward_examples,
)
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.processors import check_processor_functions
from ippo_cli.rollout.generator import Generator, build_generator, sampling_settings
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.runs.deadline import TimeLimit
from ippo_cli.runs.faults import arm_faults, fault_point
from ippo_cli.runs.folder import (
    activate_resumed_config,
    check_iterations_left,
    lock_folder,
    reserve_folder,
    wait_for_folder,
)
from ippo_cli.runs.garbage_collection import restore_gc
from ippo_cli.runs.random_streams import rng_state
from ippo_cli.runs.signals import PreemptionHandler
from ippo_cli.runs.watchdog import Watchdog
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.tasks.schedule import ExampleSchedule
from ippo_cli.tasks.task import Task, can_reuse_prefix, get_num_workers, load_task, make_task_factory
from ippo_cli.training.checkpoint import CheckpointManager, TrainingProgress, TrainingState, has_optimizers
from ippo_cli.training.experience import ExperienceCollector
from ippo_cli.training.failure import error_file, handle_failure
from ippo_cli.training.opponents import OpponentPool, sort_ratings
from ippo_cli.training.targets import Algorithm
from ippo_cli.training.trainer import Trainer

PROCESS_STARTED_AT = time.time()  # approximately: the time of this import


def run_training(
    config: Config, folder: Path | None, *, resumed: bool, start: Callable[[Path], None] | None = None
) -> None:
    """Train in this process as one rank of a run. Raises `IppoError` or `KeyboardInterrupt` if the run does not finish.

    Without `folder` (ranks started by an external launcher), rank 0 reserves one and broadcasts it.
    `start` writes the start files into the folder, on rank 0.
    """
    device = prepare_process(config)
    arm_faults(config.debug_faults, distributed.rank())
    with ExitStack() as over:
        try:
            distributed.check_same_on_ranks(device.type, "device")
            distributed.check_same_on_ranks(
                hashlib.sha256(repr((config, resumed)).encode()).hexdigest(), "configuration"
            )
            folder = _agree_on_folder(config, folder, start)
            with ExitStack() as held:
                _lock_run_folder(folder, held)
                preemption = held.enter_context(PreemptionHandler(over))
                _start_watchdog(config, folder, held)
                console = held.enter_context(
                    Console(config.tracker.console, list(config.task.agents), policy_by_agent(config))
                )
                preemption.on_preemption = lambda by: console.print_line(_preemption_message(by))
                _train(config, folder, console, preemption, device, resumed=resumed)
        except (IppoError, KeyboardInterrupt) as error:
            error.reported = not distributed.claim_log_once(str(error))  # type: ignore[union-attr]
            raise
        finally:
            distributed.shutdown()


def _preemption_message(by: str) -> str:
    again = "; press Ctrl-C again to exit without saving" if by == signal.SIGINT.name else ""
    return f"received {by}: saving and exiting; an update in progress finishes first{again}"


def _train(
    config: Config,
    folder: Path,
    console: Console,
    preemption: PreemptionHandler,
    device: torch.device,
    *,
    resumed: bool,
) -> None:
    previous_state = replace(read_previous_state(folder), state="running") if resumed else RunState()
    run = RunLog(folder, config.tracker, previous_state, plain_settings(config))
    trainer: Trainer | None = None
    ratings: list[tuple[str, float]] = []
    try:
        error_file(folder, distributed.rank()).unlink(missing_ok=True)  # left by the attempt before a resume
        trainer = build_trainer(config, folder, run, console, preemption, device, resumed=resumed)
        trainer.train()
        if trainer.opponents is not None:
            ratings = sort_ratings(trainer.opponents.ratings())
    except Preempted as leaving:
        run.finish("preempted")
        if not distributed.is_main():  # rank 0 reports
            raise SystemExit(INTERRUPTED if preemption.is_interrupted else leaving.exit_code) from leaving
        if preemption.is_interrupted:
            raise KeyboardInterrupt(str(leaving)) from leaving
        raise
    except BaseException as error:
        reported = handle_failure(error, run, trainer)
        if reported is error:
            raise
        raise reported from error
    finally:
        if trainer is not None:
            trainer.free()
    run.finish("done")
    more = ("num_iterations", "MORE") if config.max_iterations_this_run is None else ("max_iterations_this_run", "null")
    console.show_summary(folder, run.state.evaluation, run.state.wall_seconds, ratings, more)


def _agree_on_folder(config: Config, folder: Path | None, start: Callable[[Path], None] | None) -> Path:
    def reserve() -> Path:
        agreed = folder or reserve_folder(Path(config.output_dir) / config.name)
        if start is not None:
            start(agreed)
        return agreed

    agreed = distributed.run_on_main(reserve)
    if distributed.any_rank(not wait_for_folder(agreed)):
        raise PreflightError(f"{agreed} does not exist on every rank; output_dir must be a folder that all ranks share")
    return agreed


def _lock_run_folder(folder: Path, scope: ExitStack) -> None:
    """Lock the folder against other processes, until `scope` closes."""

    def acquire_lock() -> None:
        scope.enter_context(lock_folder(folder))

    distributed.run_on_main(acquire_lock)


def _start_watchdog(config: Config, folder: Path, scope: ExitStack) -> None:
    """Start the watchdog that ends a hanging run, until `scope` closes."""
    limit_s = config.launch.watchdog_s
    if limit_s is not None:
        scope.enter_context(Watchdog(folder, limit_s=limit_s, first_limit_s=config.launch.watchdog_first_s))


def build_trainer(
    config: Config,
    folder: Path,
    run: RunLog,
    console: Console,
    preemption: PreemptionHandler,
    device: torch.device,
    *,
    resumed: bool,
) -> Trainer:
    """Build and check all parts of a run; if `resumed`, restore them from the newest intact checkpoint."""
    task = load_task(config.task, config.seed)
    with ExitStack() as unused:  # close the reward's processes if building the trainer fails
        reward = build_reward(config.reward, config.task.agents)
        unused.callback(close_reward, reward)
        with distributed.synchronize_errors():
            check_processor_functions(config.reward.processor)
            console.print_warnings(validate_reward_examples(reward, sample_examples(task.train, task.held_out)))
            check_reward_connection(reward)
        trainer = _build_trainer(config, folder, run, console, preemption, device, task, reward, resumed=resumed)
        with distributed.synchronize_errors():
            prepare_reward(reward, RewardContext(device=device, folder=folder / "reward"))
        unused.pop_all()
    return trainer


def _build_trainer(
    config: Config,
    folder: Path,
    run: RunLog,
    console: Console,
    preemption: PreemptionHandler,
    device: torch.device,
    task: Task,
    reward: RewardFunction,
    *,
    resumed: bool,
) -> Trainer:
    plan = compute_batch_sizes(config, distributed.world_size(), len(task.train))
    config, weights = _prepare_initial_weights(config, task, folder, console, preemption)
    material = read_model_specs(config, task, weights)
    task, left_out = drop_too_long_rows(config, task, material)
    plan = compute_batch_sizes(config, distributed.world_size(), len(task.train))
    for line in left_out:
        console.print_line(line)
    schedule = example_schedule(config, plan, task)
    formats = build_prompt_formats(config, plan, task, schedule, material)
    _check_memory(config, plan, task, material, device, console)
    checkpoint_bytes, _ = required_disk_bytes(config, material, distributed.world_size())
    checkpoints = _build_checkpoint_manager(config, folder, plan, checkpoint_bytes)
    checkpoint = checkpoints.find_newest_intact() if resumed else None
    if checkpoint is not None:
        check_iterations_left(checkpoint, config, plan.last_iteration)
    saved = None if checkpoint is None or has_optimizers(checkpoint) else checkpoint
    state = _build_initial_state(config, build_team(config, weights, device, saved), run)
    fault_point("init")
    partners = OpponentPool(config, folder, state.pool, device) if config.team.opponent_pool.every else None
    if checkpoint is not None:
        checkpoints.load(state, checkpoint)
        if saved is not None:
            console.print_line(
                f"{checkpoint} has no optimizer states: optimizers are reinitialised, weights are restored"
            )
        if partners is not None:
            partners.verify_snapshots()
        distributed.run_on_main(lambda: _activate_resumed_run(folder, run, state.progress))
        console.print_line(f"resumed from {checkpoint}")
    console.print_warnings(run.record_warnings(startup_warnings(config, plan, task) | model_warnings(config, material)))
    source = _build_collector(
        config, state, schedule, formats, partners, reward, console=console, preemption=preemption, device=device
    )
    recent = run.read_last_rows(WINDOW)
    return Trainer(
        config=config,
        plan=plan,
        task=task,
        collector=source,
        opponents=partners,
        state=state,
        run=run,
        checkpoints=checkpoints,
        console=console,
        preemption=preemption,
        time_limit=_build_time_limit(config, checkpoint_bytes, recent),
        recent_rows=deque(recent, WINDOW),
    )


def _prepare_initial_weights(
    config: Config, task: Task, folder: Path, console: Console, preemption: PreemptionHandler
) -> tuple[Config, dict[str, Path | str]]:
    """Each agent's initial weights, created now if local; and the configuration with pinned revisions."""

    def report_warm_start(name: str, step: int, steps: int, loss: float) -> None:
        progress.heartbeat()
        console.show_progress(f"warm start of {name}", step, steps)
        if preemption.is_requested:  # on rank 0, which creates the model; other ranks receive the error
            raise Preempted(f"stop requested during the warm start of {name}: nothing was trained yet; start again")

    weights = initial_weights(config, task, folder, report_warm_start, console.print_line)
    config = pin_revisions(config, weights, folder)
    check_vocabularies(config, weights)
    return config, weights


def _build_initial_state(config: Config, team: Team, run: RunLog) -> TrainingState:
    """A run's state before its first iteration."""
    algorithm = Algorithm(
        config=config.algorithm,
        num_generations=config.rollout.num_generations,
        seed=config.seed,
    )
    return TrainingState(
        team=team,
        algorithm=algorithm,
        moments={name: ScoreMoments() for name in team.names},
        progress=TrainingProgress(),
        run=run.state,
        rng=rng_state(),
    )


def _build_collector(
    config: Config,
    state: TrainingState,
    schedule: ExampleSchedule,
    formats: Mapping[str, PromptFormat],
    opponents: OpponentPool | None,
    reward: RewardFunction,
    *,
    console: Console,
    preemption: PreemptionHandler,
    device: torch.device,
) -> ExperienceCollector:
    """The collector that plays and scores a run's episodes."""
    build_generator = partial(_build_generator, config, console, preemption)
    return ExperienceCollector(
        config=config,
        team=state.team,
        schedule=schedule,
        environments=EnvironmentPool(make_task_factory(config.task), workers=get_num_workers(config.task)),
        formats=formats,
        generator=build_generator(state.team.generation_policies),
        initial_generator=_build_initial_generator(config, state.team, console, preemption),
        build_generator=build_generator,
        opponents=opponents,
        needs_greedy=state.algorithm.needs_greedy,
        reward=reward,
        preemption=preemption,
        device=device,
    )


def _build_checkpoint_manager(config: Config, folder: Path, plan: BatchSizes, size: float) -> CheckpointManager:
    """The run's checkpoint manager, after a check of the disk space."""
    checkpoints = CheckpointManager(folder, config.checkpoint)
    checkpoints.check_disk_space(int(size), plan.num_iterations)
    return checkpoints


def _build_time_limit(config: Config, checkpoint_bytes: float, recent: Sequence[Mapping[str, float]]) -> TimeLimit:
    """The run's time limit; rank 0's clock and job information decide for all ranks."""
    limit = (
        resolve_deadline(config.checkpoint.save_deadline, PROCESS_STARTED_AT, job_end_time)
        if distributed.is_main()
        else None
    )
    return TimeLimit(limit, checkpoint_bytes, recent)


def _build_generator(
    config: Config,
    console: Console,
    preemption: PreemptionHandler,
    speakers: Mapping[str, GenerationPolicy],
) -> Generator:
    """The generator for these policies; between decode steps it shows progress and polls for preemption."""

    def report_progress(agent: str, done: int, rows: int) -> None:
        progress.heartbeat()
        console.show_progress(f"generating responses of {agent}", done, rows)
        fault_point("generate")
        preemption.raise_if_requested()

    sampling = sampling_settings(config.task)
    return build_generator(speakers, config.rollout, sampling, report_progress, continues=can_reuse_prefix(config))


def _build_initial_generator(
    config: Config, team: Team, console: Console, preemption: PreemptionHandler
) -> Generator | None:
    """The generator for the agents' initial policies; None if the run needs no replays."""
    if not needs_replays(config):
        return None
    return _build_generator(config, console, preemption, {name: agent.initial_agent for name, agent in team.items()})


def _activate_resumed_run(folder: Path, run: RunLog, progress: TrainingProgress) -> None:
    """Truncate the metrics to the checkpoint and activate the resumed run's configuration."""
    assert progress.metrics_bytes is not None  # rows are written before a checkpoint
    with convert_storage_errors(str(folder)):
        run.truncate_metrics(progress.metrics_bytes, progress.iteration)
        activate_resumed_config(folder)


def _check_memory(
    config: Config, plan: BatchSizes, task: Task, material: ModelSpecs, device: torch.device, console: Console
) -> None:
    """Raise `PreflightError` on all ranks if one machine has too little memory for its ranks' models."""
    ranks, hostname = distributed.world_size(), socket.gethostname()
    machine = this_machine(device.type, distributed.gather_objects(hostname).count(hostname))
    memory = estimate_run_memory(config, plan, task, material, ranks, device.type)
    for reason in distributed.gather_objects(memory_error(config, material, memory, machine, ranks)):
        if reason is not None:
            raise PreflightError(reason)
    if (warning := memory_warning(memory, machine)) is not None:
        console.print_line(warning)


def prepare_process(config: Config) -> torch.device:
    """Set up device, threads, process group and seeds; returns the device."""
    restore_gc()
    kind = device_kind(config.launch.device)
    check_quantization_device(config, kind, is_local=True)
    ranks = distributed.init(device=kind, timeout_s=config.launch.timeout_s)
    device = distributed.rank_device(kind, ranks)
    if kind == "cpu":
        torch.set_num_threads(config.launch.threads or cores_per_rank(os.environ, ranks.world_size))
    torch.use_deterministic_algorithms(config.deterministic, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]  # costs time, and uninitialised memory is never read
    disable_progress_bar()  # one bar per saved shard would hide the run's own display
    if not distributed.is_main():
        warnings.simplefilter("ignore")  # rank 0 shows the same warnings
    set_verbosity_error()  # our loading code checks the weights itself
    random.seed(config.seed)
    numpy.random.seed(config.seed % 2**32)
    torch.manual_seed(config.seed)
    return device
