"""Runs one training process (rank): setup, training, failure, shutdown and the report of the run."""

from __future__ import annotations

import hashlib
import os
import signal
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from transformers.utils.logging import disable_progress_bar, set_verbosity_error

from ippo_cli.config.errors import INTERRUPTED, IppoError, Preempted, PreflightError
from ippo_cli.config.model_args import check_quantization_package
from ippo_cli.config.schema import Config, Mode, TrackerConfig
from ippo_cli.config.teams import policy_by_agent
from ippo_cli.engine import distributed
from ippo_cli.engine.launchers import cores_per_rank
from ippo_cli.planning.resources import device_kind
from ippo_cli.reporting.console import Console
from ippo_cli.reporting.run_log import RunLog, RunState, read_previous_state
from ippo_cli.reporting.trackers.build import plain_settings
from ippo_cli.runs.faults import arm_faults
from ippo_cli.runs.folder import lock_folder, print_warning, reserve_folder, wait_for_folder
from ippo_cli.runs.garbage_collection import restore_gc
from ippo_cli.runs.random_streams import seed_generators
from ippo_cli.runs.signals import PreemptionHandler
from ippo_cli.runs.watchdog import Watchdog
from ippo_cli.training.build_trainer import RunContext, build_trainer
from ippo_cli.training.failure import error_file, handle_failure
from ippo_cli.training.methods.opponents import sort_ratings
from ippo_cli.training.trainer import Trainer


def run_training(
    config: Config, folder: Path | None, *, resumed: bool, start: Callable[[Path], None] | None = None
) -> Path:
    """Train in this process as one rank of a run; returns its folder.

    Raises `IppoError` or `KeyboardInterrupt` if the run does not finish.

    Without `folder` (ranks started by an external launcher), rank 0 reserves one and broadcasts it.
    `start` writes the start files into the folder, on rank 0.
    """
    return run_rank(config, folder, _train, resumed=resumed, start=start)


def run_rank(
    config: Config,
    folder: Path | None,
    work: Callable[[RunContext], None],
    *,
    resumed: bool = False,
    root: Path | None = None,
    start: Callable[[Path], None] | None = None,
) -> Path:
    """Set up this process as one rank, and do some work in the run's folder, which is returned; see `run_training`.

    `root`: where a folder is reserved; default: that of the runs.
    """
    device = prepare_process(config, ranks_per_group=config.deepspeed.ranks_per_group)
    arm_faults(config.debug_faults, distributed.rank())
    with ExitStack() as over:
        try:
            distributed.check_same_on_ranks(device.type, "device")
            distributed.check_same_on_ranks(
                hashlib.sha256(repr((config, resumed)).encode()).hexdigest(), "configuration"
            )
            folder = _agree_on_folder(folder, root or Path(config.output_dir) / config.name, start)
            with ExitStack() as held:
                _lock_run_folder(folder, held)
                preemption = held.enter_context(PreemptionHandler(over))
                _start_watchdog(config, folder, held)
                console = held.enter_context(
                    Console(config.tracker.console, list(config.task.agents), policy_by_agent(config))
                )
                preemption.on_preemption = lambda by: console.print_line(_preemption_message(by))
                previous = replace(read_previous_state(folder), state="running") if resumed else RunState()
                work(
                    RunContext(
                        config=config,
                        folder=folder,
                        log=RunLog(folder, config.tracker, previous, plain_settings(config)),
                        console=console,
                        preemption=preemption,
                        device=device,
                        is_resumed=resumed,
                    )
                )
            return folder
        except (IppoError, KeyboardInterrupt) as error:
            error.reported = not distributed.claim_log_once(str(error))  # type: ignore[union-attr]
            raise
        finally:
            distributed.shutdown()


def _preemption_message(by: str) -> str:
    again = "; press Ctrl-C again to exit without saving" if by == signal.SIGINT.name else ""
    return f"received {by}: saving and exiting; an update in progress finishes first{again}"


def _train(context: RunContext) -> None:
    config, folder, run, preemption = context.config, context.folder, context.log, context.preemption
    trainer: Trainer | None = None
    ratings: list[tuple[str, float]] = []
    try:
        error_file(folder, distributed.rank()).unlink(missing_ok=True)  # left by the attempt before a resume
        trainer = build_trainer(context)
        trainer.train()
        ratings = sort_ratings({name: own for method in trainer.methods for name, own in method.ratings().items()})
    except Preempted as leaving:
        run.finish("preempted")
        if not preemption.is_interrupted_twice:
            write_run_report(folder, config.tracker, is_urgent=True)
        if not distributed.is_main():  # rank 0 reports
            raise SystemExit(INTERRUPTED if preemption.is_interrupted else leaving.exit_code) from leaving
        if preemption.is_interrupted:
            raise KeyboardInterrupt(str(leaving)) from leaving
        raise
    except BaseException as error:
        reported = handle_failure(error, run, trainer)
        if isinstance(error, Exception):
            write_run_report(folder, config.tracker, is_urgent=True)
        if reported is error:
            raise
        raise reported from error
    finally:
        if trainer is not None:
            trainer.free()
    run.finish("done")
    write_run_report(folder, config.tracker)
    more = ("num_iterations", "MORE") if config.max_iterations_this_run is None else ("max_iterations_this_run", "null")
    context.console.show_summary(
        folder,
        run.state.evaluation,
        run.state.wall_seconds,
        ratings,
        more,
        fits_critics=config.mode is Mode.critic,
    )


def _agree_on_folder(folder: Path | None, root: Path, start: Callable[[Path], None] | None) -> Path:
    def reserve() -> Path:
        agreed = folder or reserve_folder(root)
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


def prepare_process(config: Config, *, ranks_per_group: int = 1) -> torch.device:
    """Set up device, threads, process group and seeds; returns the device.

    `ranks_per_group`: size of the model-parallel groups.
    """
    restore_gc()
    kind = device_kind(config.launch.device)
    check_quantization_package(config)
    ranks = distributed.init(device=kind, timeout_s=config.launch.timeout_s, ranks_per_group=ranks_per_group)
    device = distributed.rank_device(kind, ranks)
    if kind == "cpu":
        torch.set_num_threads(config.launch.threads or cores_per_rank(os.environ, ranks.world_size))
    torch.use_deterministic_algorithms(config.deterministic, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]  # costs time, and uninitialised memory is never read
    disable_progress_bar()  # one bar per saved shard would hide the run's own display
    if not distributed.is_main():
        warnings.simplefilter("ignore")  # rank 0 shows the same warnings
    set_verbosity_error()  # our loading code checks the weights itself
    seed_generators(config.seed)
    return device


QUICK_BYTES = 16e6  # of samples and metrics; a run that has to end soon writes no report of more


def write_run_report(folder: Path, tracker: TrackerConfig, *, is_urgent: bool = False) -> None:
    """Write `report.html` on rank 0 if `tracker.report` is set.

    `is_urgent`: the run was preempted or failed, and its process may soon be killed.
    """
    if not (tracker.report and distributed.is_main()):
        return
    try:
        if is_urgent and _input_bytes(folder) > QUICK_BYTES:
            return
        from ippo_cli.report.write import REPORT_NAME, write_report
        from ippo_cli.runs.records import RunRecord

        write_report([RunRecord(folder)], folder / REPORT_NAME)
    except Exception as error:
        print_warning(f"report.html is not written ({error}); ippo-report {folder} writes it")


def _input_bytes(folder: Path) -> int:
    files = [folder / "metrics.jsonl", *(folder / "samples").glob("*.jsonl")]
    return sum(file.stat().st_size for file in files if file.is_file())
