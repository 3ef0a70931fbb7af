"""One rank of a run, from settings to exit: prepared, built, restored, trained, and ended in order."""

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
from ippo_cli.agents.initial import initial_weights, pinned, refuse_other_vocabularies
from ippo_cli.agents.team import Team
from ippo_cli.config.batch_sizes import Arithmetic, arithmetic
from ippo_cli.config.credit import replays
from ippo_cli.config.errors import INTERRUPTED, IppoError, Preempted, PreflightError, storing
from ippo_cli.config.model_args import check_quantization_device
from ippo_cli.config.schema import Config
from ippo_cli.config.teams import holders
from ippo_cli.config.time_limit import limit_of
from ippo_cli.engine import distributed, progress
from ippo_cli.engine.launchers import cores_per_rank, job_end
from ippo_cli.planning.preflight import (
    Material,
    device_kind,
    disk_needs,
    example_schedule,
    fitting_formats,
    fitting_task,
    memory_of,
    memory_warning,
    read_material,
    this_machine,
    unusual_material,
    what_cannot_fit,
)
from ippo_cli.reporting.console import Console
from ippo_cli.reporting.run_log import Run, RunState, state_before
from ippo_cli.reporting.trackers.build import settings_of
from ippo_cli.reporting.training_warnings import WINDOW, unusual_start
from ippo_cli.rewards.build import build_reward
from ippo_cli.rewards.contract import (
    Place,
    RewardFunction,
    close_reward,
    prepare_reward,
    reach_reward,
    sample_examples,
    try_reward,
)
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.processors import check_processor_functions
from ippo_cli.rollout.generator import GENERATORS, Generator, sampling_settings
from ippo_cli.rollout.policy import GenerationPolicy
from ippo_cli.runs.deadline import TimeLimit
from ippo_cli.runs.faults import arm, fault_point
from ippo_cli.runs.folder import comes_in_sight, lock, refuse_fewer_iterations, reserve_folder, take_effect
from ippo_cli.runs.garbage_collection import collect_as_usual
from ippo_cli.runs.random_streams import rng_state
from ippo_cli.runs.signals import PreemptionHandler
from ippo_cli.runs.watchdog import Watchdog
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.tasks.schedule import ExampleSchedule
from ippo_cli.tasks.task import Task, goes_on, load_task, task_environments, workers_of
from ippo_cli.training.checkpoint import Checkpoints, Progress, State, has_optimizers
from ippo_cli.training.experience import ExperienceSource
from ippo_cli.training.failure import error_file, fail
from ippo_cli.training.opponents import Partners, best_first
from ippo_cli.training.targets import Algorithm
from ippo_cli.training.trainer import Trainer

BEGAN = time.time()  # of this process, or nearly so


def run_training(
    config: Config, folder: Path | None, *, resumed: bool, start: Callable[[Path], None] | None = None
) -> None:
    """Train in this process as one of its ranks. Raises an `IppoError`, or `KeyboardInterrupt`, as the run ends.

    Without a folder rank 0 reserves one, fills it with `start`, and tells the others: ranks that were started by
    somebody else agree on one folder this way.
    """
    device = prepare_process(config)
    arm(config.debug_faults, distributed.rank())
    with ExitStack() as over:
        try:
            distributed.same_everywhere(device.type, "device")
            distributed.same_everywhere(hashlib.sha256(repr((config, resumed)).encode()).hexdigest(), "configuration")
            folder = _agreed_folder(config, folder, start)
            with ExitStack() as held:
                _hold(folder, held)
                preemption = held.enter_context(PreemptionHandler(over))
                _watch(config, folder, held)
                console = held.enter_context(Console(config.tracker.console, list(config.task.agents), holders(config)))
                preemption.on_asked = lambda by: console.say(_leaving_line(by))
                _train(config, folder, console, preemption, device, resumed=resumed)
        except (IppoError, KeyboardInterrupt) as error:
            error.told = not distributed.first_to_say(str(error))  # type: ignore[union-attr]
            raise
        finally:
            distributed.shutdown()


def _leaving_line(by: str) -> str:
    again = "; Ctrl-C again gives up, and loses what was not saved" if by == signal.SIGINT.name else ""
    return f"leaving ({by}): an update that has begun is finished, then the run is saved{again}"


def _train(
    config: Config,
    folder: Path,
    console: Console,
    preemption: PreemptionHandler,
    device: torch.device,
    *,
    resumed: bool,
) -> None:
    before = replace(state_before(folder), state="running") if resumed else RunState()
    run = Run(folder, config.tracker, before, settings_of(config))
    trainer: Trainer | None = None
    ratings: list[tuple[str, float]] = []
    try:
        error_file(folder, distributed.rank()).unlink(missing_ok=True)  # of the attempt before a resume
        trainer = build_trainer(config, folder, run, console, preemption, device, resumed=resumed)
        trainer.train()
        if trainer.partners is not None:
            ratings = best_first(trainer.partners.ratings())
    except Preempted as leaving:
        run.finish("preempted")
        if not distributed.is_main():  # rank 0 tells
            raise SystemExit(INTERRUPTED if preemption.interrupted else leaving.exit_code) from leaving
        if preemption.interrupted:
            raise KeyboardInterrupt(str(leaving)) from leaving
        raise
    except BaseException as error:
        told = fail(error, run, trainer)
        if told is error:
            raise
        raise told from error
    finally:
        if trainer is not None:
            trainer.free()
    run.finish("done")
    more = ("num_iterations", "MORE") if config.stop_after is None else ("stop_after", "null")
    console.summary(folder, run.state.evaluation, run.state.wall_seconds, ratings, more)


def _agreed_folder(config: Config, folder: Path | None, start: Callable[[Path], None] | None) -> Path:
    def reserved() -> Path:
        agreed = folder or reserve_folder(Path(config.output_dir) / config.name)
        if start is not None:
            start(agreed)
        return agreed

    agreed = distributed.on_main(reserved)
    if distributed.any_rank(not comes_in_sight(agreed)):
        raise PreflightError(f"{agreed} is not there on every rank; output_dir needs a folder that all ranks share")
    return agreed


def _hold(folder: Path, held: ExitStack) -> None:
    """Keep other runs out of the folder."""

    def hold() -> None:
        held.enter_context(lock(folder))

    distributed.on_main(hold)


def _watch(config: Config, folder: Path, held: ExitStack) -> None:
    """End the run where it hangs."""
    limit_s = config.launch.watchdog_s
    if limit_s is not None:
        held.enter_context(Watchdog(folder, limit_s=limit_s, first_limit_s=config.launch.watchdog_first_s))


def build_trainer(
    config: Config,
    folder: Path,
    run: Run,
    console: Console,
    preemption: PreemptionHandler,
    device: torch.device,
    *,
    resumed: bool,
) -> Trainer:
    """Everything a run needs, checked against each other; restored from the newest checkpoint where resumed."""
    task = load_task(config.task, config.seed)
    with ExitStack() as unused:  # what fails before there is a trainer leaves no process of the reward behind
        reward = build_reward(config.reward, config.task.agents)
        unused.callback(close_reward, reward)
        with distributed.synchronize_errors():
            check_processor_functions(config.reward.processor)
            console.warn(try_reward(reward, sample_examples(task.train, task.held_out)))
            reach_reward(reward)
        trainer = _build_trainer(config, folder, run, console, preemption, device, task, reward, resumed=resumed)
        with distributed.synchronize_errors():
            prepare_reward(reward, Place(device=device, folder=folder / "reward"))
        unused.pop_all()
    return trainer


def _build_trainer(
    config: Config,
    folder: Path,
    run: Run,
    console: Console,
    preemption: PreemptionHandler,
    device: torch.device,
    task: Task,
    reward: RewardFunction,
    *,
    resumed: bool,
) -> Trainer:
    plan = arithmetic(config, distributed.world_size(), len(task.train))
    config, weights = _pinned_weights(config, task, folder, console, preemption)
    material = read_material(config, task, weights)
    task, left_out = fitting_task(config, task, material)
    plan = arithmetic(config, distributed.world_size(), len(task.train))
    for line in left_out:
        console.say(line)
    schedule = example_schedule(config, plan, task)
    formats = fitting_formats(config, plan, task, schedule, material)
    _refuse_what_cannot_fit(config, plan, task, material, device, console)
    checkpoint_bytes, _ = disk_needs(config, material, distributed.world_size())
    checkpoints = _checkpoints(config, folder, plan, checkpoint_bytes)
    checkpoint = checkpoints.newest() if resumed else None
    if checkpoint is not None:
        refuse_fewer_iterations(checkpoint, config, plan.last_iteration)
    saved = None if checkpoint is None or has_optimizers(checkpoint) else checkpoint
    state = _initial_state(config, build_team(config, weights, device, saved), run)
    fault_point("init")
    partners = Partners(config, folder, state.pool, device) if config.team.partners.every else None
    if checkpoint is not None:
        checkpoints.load(state, checkpoint)
        if saved is not None:
            console.say(f"{checkpoint} has no optimizer states: optimizers start anew, from the weights as they are")
        if partners is not None:
            partners.verify()
        distributed.on_main(lambda: _go_on(folder, run, state.progress))
        console.say(f"resumed from {checkpoint}")
    console.warn(run.note(unusual_start(config, plan, task) | unusual_material(config, material)))
    source = _experience_source(
        config, state, schedule, formats, partners, reward, console=console, preemption=preemption, device=device
    )
    recent = run.last_rows(WINDOW)
    return Trainer(
        config=config,
        plan=plan,
        task=task,
        source=source,
        partners=partners,
        state=state,
        run=run,
        checkpoints=checkpoints,
        console=console,
        preemption=preemption,
        limit=_time_limit(config, checkpoint_bytes, recent),
        recent=deque(recent, WINDOW),
    )


def _pinned_weights(
    config: Config, task: Task, folder: Path, console: Console, preemption: PreemptionHandler
) -> tuple[Config, dict[str, Path | str]]:
    """Where each agent starts from, made now where it is made locally; and the configuration that names it."""

    def warmed_up(name: str, step: int, steps: int, loss: float) -> None:
        progress.made()
        console.progress(f"{name} warms up", step, steps)
        if preemption.asked:  # on rank 0, which makes the model; others are told
            raise Preempted(f"asked to leave while {name} warmed up: nothing was trained yet, so start again")

    weights = initial_weights(config, task, folder, warmed_up, console.say)
    config = pinned(config, weights, folder)
    refuse_other_vocabularies(config, weights)
    return config, weights


def _initial_state(config: Config, team: Team, run: Run) -> State:
    """A run's state before its first iteration."""
    algorithm = Algorithm(
        config=config.algorithm,
        num_generations=config.rollout.num_generations,
        seed=config.seed,
    )
    return State(
        team=team,
        algorithm=algorithm,
        moments={name: ScoreMoments() for name in team.names},
        progress=Progress(),
        run=run.state,
        rng=rng_state(),
    )


def _experience_source(
    config: Config,
    state: State,
    schedule: ExampleSchedule,
    formats: Mapping[str, PromptFormat],
    partners: Partners | None,
    reward: RewardFunction,
    *,
    console: Console,
    preemption: PreemptionHandler,
    device: torch.device,
) -> ExperienceSource:
    """What plays and scores a run's episodes."""
    generator_of = partial(_generator, config, console, preemption)
    return ExperienceSource(
        config=config,
        team=state.team,
        schedule=schedule,
        environments=EnvironmentPool(task_environments(config.task), workers=workers_of(config.task)),
        formats=formats,
        generator=generator_of(state.team.speakers),
        initial=_initial_generator(config, state.team, console, preemption),
        generator_of=generator_of,
        partners=partners,
        with_greedy=state.algorithm.needs_greedy,
        reward=reward,
        preemption=preemption,
        device=device,
    )


def _checkpoints(config: Config, folder: Path, plan: Arithmetic, size: float) -> Checkpoints:
    """The run's checkpoints, for which there is room."""
    checkpoints = Checkpoints(folder, config.checkpoint)
    checkpoints.refuse_too_little_room(int(size), plan.num_iterations)
    return checkpoints


def _time_limit(config: Config, checkpoint_bytes: float, recent: Sequence[Mapping[str, float]]) -> TimeLimit:
    """When the run must have saved. Rank 0's clock, and what it was told of the job, decide for all."""
    limit = limit_of(config.checkpoint.must_save_by, BEGAN, job_end) if distributed.is_main() else None
    return TimeLimit(limit, checkpoint_bytes, recent)


def _generator(
    config: Config,
    console: Console,
    preemption: PreemptionHandler,
    speakers: Mapping[str, GenerationPolicy],
) -> Generator:
    """What writes for the agents; between its steps progress is shown, and signals that ask to leave are heard."""

    def poll(agent: str, done: int, rows: int) -> None:
        progress.made()
        console.progress(f"generating responses of {agent}", done, rows)
        fault_point("generate")
        preemption.poll()

    sampling = sampling_settings(config.task)
    return GENERATORS[config.rollout.kind](speakers, config.rollout, sampling, poll, continues=goes_on(config))


def _initial_generator(config: Config, team: Team, console: Console, preemption: PreemptionHandler) -> Generator | None:
    """What writes for the agents as they were before training, where episodes are ever played anew."""
    if not replays(config):
        return None
    return _generator(config, console, preemption, {name: agent.initial for name, agent in team.items()})


def _go_on(folder: Path, run: Run, progress: Progress) -> None:
    """Make the folder that of the run which has been resumed."""
    assert progress.metrics_bytes is not None  # nothing is saved before the rows are
    with storing(str(folder)):
        run.truncate_metrics(progress.metrics_bytes, progress.iteration)
        take_effect(folder)


def _refuse_what_cannot_fit(
    config: Config, plan: Arithmetic, task: Task, material: Material, device: torch.device, console: Console
) -> None:
    """Raise `PreflightError` on all ranks where the models of one machine's ranks are more than it can hold."""
    ranks, here = distributed.world_size(), socket.gethostname()
    machine = this_machine(device.type, distributed.gather_objects(here).count(here))
    memory = memory_of(config, plan, task, material, ranks, device.type)
    for reason in distributed.gather_objects(what_cannot_fit(config, material, memory, machine, ranks)):
        if reason is not None:
            raise PreflightError(reason)
    if (warning := memory_warning(memory, machine)) is not None:
        console.say(warning)


def prepare_process(config: Config) -> torch.device:
    """Device, threads, process group, seeds."""
    collect_as_usual()
    kind = device_kind(config.launch.device)
    check_quantization_device(config, kind, here=True)
    ranks = distributed.init(device=kind, timeout_s=config.launch.timeout_s)
    device = distributed.device_of(kind, ranks)
    if kind == "cpu":
        torch.set_num_threads(config.launch.threads or cores_per_rank(os.environ, ranks.world_size))
    torch.use_deterministic_algorithms(config.deterministic, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]  # costs time, and nothing reads it
    disable_progress_bar()  # one bar per saved shard would drown the run's own display
    if not distributed.is_main():
        warnings.simplefilter("ignore")  # rank 0 is warned of the same
    set_verbosity_error()  # what matters about loaded weights is checked where they are loaded
    random.seed(config.seed)
    numpy.random.seed(config.seed % 2**32)
    torch.manual_seed(config.seed)
    return device
