"""`ippo-train -m`: checks all jobs before the first one trains, then trains each job in separate processes."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra._internal.utils import get_args_parser
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from ippo_cli.compose.arguments import SWEEP_FLAGS, SWEEP_MODE
from ippo_cli.compose.diagnose import diagnose_error
from ippo_cli.compose.load import (
    build_config,
    build_sweep_config,
    check_agents,
    config_dir,
    register_options,
    resolve_config,
)
from ippo_cli.compose.searchpath import SEARCH_PATH
from ippo_cli.compose.validate import WrongConfig
from ippo_cli.config.checks import check_config
from ippo_cli.config.commands import last_value, parse_path
from ippo_cli.config.errors import UNEXPECTED, ConfigError, IppoError, ResumeError, UnknownKey
from ippo_cli.config.hardware import world_size
from ippo_cli.config.packages import check_tracker_packages
from ippo_cli.config.schema import Config, Mode, SweepKind
from ippo_cli.config.sweeps import check_sweep, check_sweep_job
from ippo_cli.config.text import format_count
from ippo_cli.engine.launchers import external_world_size
from ippo_cli.runs.folder import display_path, is_run_locked, lock_folder
from ippo_cli.runs.output import ignore_closed_output, print_text
from ippo_cli.sweeps import folder as sweep_folder
from ippo_cli.sweeps.folder import STOP_FILE, JobRow, read_rows
from ippo_cli.sweeps.grid import expand_grid
from ippo_cli.sweeps.job import SweepContext, check_job_resume, prepare_resume, run_job
from ippo_cli.sweeps.kinds import apply_sweep_settings, build_search
from ippo_cli.sweeps.outcome import SweepRefused, refused_jobs_error, report_and_exit
from ippo_cli.sweeps.search import FixedJobs, Search, resume_rows, run_search, run_search_in_rounds
from ippo_cli.sweeps.signals import SignalForwarding

MULTIRUN_FLAGS = (*SWEEP_FLAGS, SWEEP_MODE)
PROGRESS_INTERVAL_S = 3.0  # seconds between progress lines while jobs are checked
BASIC_SWEEPER = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
# Launchers that run jobs on this machine, so that checks of files and packages here are valid for the jobs.
LOCAL_LAUNCHERS = ("basic", "joblib", "submitit_local")


@dataclass(frozen=True, slots=True)
class CheckedJob:
    """A job with its composed and checked configuration."""

    row: JobRow
    plain: dict[str, Any]
    config: Config


def is_sweep(argv: Sequence[str]) -> bool:
    """Whether these arguments start or resume a sweep."""
    typed_now = get_args_parser().parse_args(list(argv))
    if typed_now.cfg or typed_now.info or typed_now.hydra_help or typed_now.shell_completion:
        return False
    return typed_now.multirun or MULTIRUN_FLAGS[-1] in argv or _resumed_folder(argv) is not None


def run_sweep(argv: Sequence[str]) -> None:
    """Check and run all jobs. Raises `SweepRefused`, `SweepFailed`, `Preempted` or `KeyboardInterrupt`."""
    _check_launcher()
    wanted = last_value(argv, "resume") or "never"
    typed_now = [text for text in argv if text not in MULTIRUN_FLAGS and not text.startswith("resume=")]
    saved = _resumed_folder(argv)
    if saved is not None:
        typed_now = _saved_arguments(saved, typed_now)
    elif wanted not in ("never", "auto", "must"):
        raise ConfigError(f"resume={wanted}", "is not a sweep", "use the folder that contains sweep.json")
    parsed = get_args_parser().parse_args(typed_now)
    _run(parsed.config_name or "config", parsed.overrides, typed_now, wanted, saved)


def run_search_sweep(
    overrides: Sequence[str],
    folder: Path,
    search: Search,
    report: Callable[[Path, str | None], None],
    recorded: Sequence[str],
) -> None:
    """Run the jobs of a search in a folder, or its missing jobs, with the launcher of the overrides.

    `report` gets the folder and the launcher's error, and raises what `run_sweep` raises. `recorded`: the arguments in
    `sweep.json`.
    """
    _check_launcher()
    chosen = [*overrides, f"hydra.sweep.dir={QuotedString(text=str(folder), quote=Quote.single).with_quotes()}"]
    saved = folder if (folder / sweep_folder.SWEEP_FILE).is_file() else None
    _run("config", chosen, list(recorded), "never", saved, search=search, report=report)


def _run(*arguments: Any, **keys: Any) -> None:
    register_options()
    with initialize_config_dir(str(config_dir()), job_name="ippo-train", version_base="1.3"):
        _SweepRunner(*arguments, **keys).run()


def _check_launcher() -> None:
    """Raise `ConfigError` in a rank of an external launcher."""
    ranks = external_world_size()
    if ranks is not None:
        raise ConfigError(
            SWEEP_FLAGS[0],
            f"starts its own ranks, and this process is already one of {ranks} ranks of an external launcher",
            "start it without that launcher, with launch.processes=N for N ranks per job",
        )


def _resumed_folder(argv: Sequence[str]) -> Path | None:
    """The folder of the sweep in `resume=`; None if it is not the folder of a sweep."""
    wanted = last_value(argv, "resume")
    folder = None if wanted is None else parse_path(wanted).absolute()
    return folder if folder is not None and (folder / sweep_folder.SWEEP_FILE).is_file() else None


def _saved_arguments(folder: Path, typed_now: Sequence[str]) -> list[str]:
    """The saved arguments of a sweep; new launcher arguments replace the saved ones, others raise `ConfigError`."""
    saved = sweep_folder.read_arguments(folder)
    more = [text for text in typed_now if text not in saved]
    refused = [text for text in more if not sweep_folder.is_launcher_override(text)]
    if refused:
        raise ConfigError(
            f"resume={folder}",
            f"resumes the sweep with its saved arguments, which {' '.join(refused)} would change",
            "remove these arguments, or start a new sweep",
        )
    return [*(text for text in saved if not (more and sweep_folder.is_launcher_override(text))), *more]


class _SweepRunner:
    """One sweep, from its arguments to the final table."""

    def __init__(
        self,
        config_name: str,
        overrides: list[str],
        typed_now: list[str],
        wanted: str,
        saved: Path | None,
        *,
        search: Search | None = None,
        report: Callable[[Path, str | None], None] = report_and_exit,
    ) -> None:
        """`search`: generates the jobs, in place of `sweep`."""
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        self.loader: ConfigLoader = hydra.config_loader
        self.config_name = config_name
        self.typed_now = typed_now
        self.search, self.report = search, report
        self.folders = [text for text in overrides if text.startswith(SEARCH_PATH)]
        of_hydra = [text for text in overrides if text.lstrip("+~").startswith(("hydra.", "hydra/"))]
        of_sweep = [text for text in overrides if text.lstrip("+~").startswith(("sweep=", "sweep."))]
        self.overrides = [text for text in overrides if text not in (*of_hydra, *of_sweep)]

        def compose_master(texts: list[str]) -> DictConfig:
            return hydra.compose_config(config_name, texts, run_mode=RunMode.MULTIRUN, with_log_configuration=False)

        try:
            self.master = compose_master(overrides)
        except (HydraException, OmegaConfBaseException):
            # Hydra drops swept overrides, and so keys of swept options are missing: compose the first job instead.
            first = [*of_hydra, *of_sweep, *self._expand_overrides(self.overrides)[0]]
            try:
                self.master = compose_master(first)
            except (HydraException, OmegaConfBaseException) as error:
                raise diagnose_error(first, error) from error
        self.sweep_dir = Path(str(self.master.hydra.sweep.dir))
        self.sweep = build_sweep_config(self.master)
        check_sweep(self.sweep)
        self.is_dir_chosen = any(text.startswith("hydra.sweep.dir=") for text in overrides)
        self.resumed = self._find_resumable(wanted, saved)

    def run(self) -> None:
        search = self._build_search()
        if self.master.hydra.sweeper._target_ != BASIC_SWEEPER:
            # This sweeper generates jobs while it runs; each job is checked when it starts.
            self._run_and_report(
                sweep_folder.reserve_sweep_folder(self.sweep_dir, chosen=self.is_dir_chosen),
                [],
                None,
                self._run_sweeper,
            )
        elif isinstance(search, FixedJobs) or self.resumed is None:
            self._run_checked(search)
        else:
            rows, plains = resume_rows(self.resumed, search, lambda row: self._check_job(row).plain)
            self._announce(search.total, sum(row.state in sweep_folder.FINISHED_STATES for row in rows), self.resumed)
            self._run_and_report(self.resumed, rows, search.total, lambda this: self._run_jobs(search, this, plains))

    def _build_search(self) -> Search:
        """The search that generates the jobs. Raises `ConfigError` if the launcher or sweeper does not allow it."""
        if self.sweep.kind is SweepKind.grid and self.sweep.max_parallel == 1:
            return self.search or FixedJobs()
        launcher = str(self.master.hydra.runtime.choices["hydra/launcher"])
        setting = f"sweep={self.sweep.kind.value} sweep.max_parallel={self.sweep.max_parallel}"
        if launcher != "basic":
            remedy = "remove the launcher, as inside of one cluster job, or use sweep=grid sweep.max_parallel=1"
            raise ConfigError(
                setting, f"runs its jobs on this machine, and so cannot use hydra/launcher={launcher}", remedy
            )
        if self.master.hydra.sweeper._target_ != BASIC_SWEEPER or self.master.hydra.sweeper.params:
            raise ConfigError(
                setting, "generates its own jobs, and so cannot use hydra.sweeper", "remove hydra.sweeper"
            )
        if self.search is not None and self.sweep.kind is not SweepKind.grid:
            raise ConfigError(f"sweep={self.sweep.kind.value}", "generates jobs, which the command does", "remove it")
        return self.search or build_search(self.sweep, self.overrides, self._group_options)

    def _run_checked(self, search: Search) -> None:
        """Run the sweep after a check of all jobs of a grid, or of the first jobs of a search."""
        jobs, done = self._check_jobs(
            self._initial_rows() if isinstance(search, FixedJobs) else search.new_rows(self.sweep_dir, [])
        )
        if jobs and jobs[0].config.mode is Mode.pilot:
            raise ConfigError("mode=pilot", "measures one configuration", "use it without -m, once for each job")
        if jobs and jobs[0].config.mode is Mode.plan:
            self._plan_jobs(jobs)
            return
        rows = sorted([*done, *(job.row for job in jobs)], key=lambda row: row.job)
        folder = self.resumed or sweep_folder.reserve_sweep_folder(self.sweep_dir, chosen=self.is_dir_chosen)
        total = len(rows) if isinstance(search, FixedJobs) else search.total
        self._announce(total, len(done), folder)
        if isinstance(search, FixedJobs) and self.sweep.max_parallel == 1:
            self._run_and_report(folder, rows, total, lambda this: self._run_launcher(this, [job.row for job in jobs]))
        else:
            plains = {job.row.job: job.plain for job in jobs}
            self._run_and_report(folder, rows, total, lambda this: self._run_jobs(search, this, plains))

    def _announce(self, total: int, done: int, folder: Path) -> None:
        words = f", {done} of them done" if done else ""
        print_text(f"ippo: a sweep of {format_count(total, 'job')}{words} -> {display_path(folder)}")

    def _find_resumable(self, wanted: str, saved: Path | None) -> Path | None:
        """The folder of the sweep to resume; None for a new sweep. Raises `ResumeError` or `ConfigError`."""
        folder = saved or (
            sweep_folder.find_sweep(self.sweep_dir, self.typed_now) if wanted in ("auto", "must") else None
        )
        if folder is None:
            if wanted == "must":
                raise ResumeError(
                    f"resume=must: no sweep of these overrides in {self.sweep_dir.parent}; use resume=auto"
                )
            if wanted == "auto":
                print_text(f"no sweep of these overrides in {self.sweep_dir.parent}: starting a new one")
            return None
        if self.master.hydra.sweeper._target_ != BASIC_SWEEPER:
            raise ConfigError(
                f"resume={wanted}",
                "resumes the missing jobs, and this sweeper generates its jobs while it runs",
                "start a new sweep",
            )
        if is_run_locked(folder):
            raise ResumeError(f"resume={wanted}: the sweep in {folder} is running in another process")
        return folder

    # ---- jobs and their checks --------------------------------------------------------------------------------

    def _group_options(self, group: str) -> list[str]:
        return self.loader.get_group_options(  # type: ignore[call-arg]
            group, ObjectType.CONFIG, self.config_name, self.folders
        )

    def _expand_overrides(self, overrides: Sequence[str]) -> list[list[str]]:
        return expand_grid(overrides, self._group_options)

    def _initial_rows(self) -> list[JobRow]:
        if self.resumed is not None:
            return read_rows(self.resumed)
        params = [f"{key}={value}" for key, value in (self.master.hydra.sweeper.params or {}).items()]
        grid = self._expand_overrides([*params, *self.overrides])
        return [JobRow(job=job, overrides=texts, folder="") for job, texts in enumerate(grid, start=1)]

    def _check_jobs(self, rows: list[JobRow]) -> tuple[list[CheckedJob], list[JobRow]]:
        """The jobs to run, and the rows of completed jobs. Raises `SweepRefused` with all errors of invalid jobs."""
        print_text(f"ippo: checking {format_count(len(rows), 'job')}")
        jobs: list[CheckedJob] = []
        refused: dict[int, IppoError] = {}
        done: list[JobRow] = []
        last_report = time.monotonic()
        for row in rows:
            if time.monotonic() - last_report > PROGRESS_INTERVAL_S:
                last_report = time.monotonic()
                print_text(f"ippo: checked {len(jobs) + len(refused) + len(done)} of {len(rows)} jobs")
            if self.resumed is not None and sweep_folder.is_done(self.resumed / row.folder):
                sweep_folder.set_state(row, "done", 0, None)
                sweep_folder.copy_run_result(row, self.resumed / row.folder)
                done.append(row)
                continue
            try:
                jobs.append(self._check_job(row))
            except IppoError as error:
                refused[row.job] = error
        jobs_of = {job.row.folder: job.row.job for job in reversed(jobs)}
        for job in jobs:
            if jobs_of[job.row.folder] != job.row.job:
                refused[job.row.job] = ConfigError(
                    f"hydra.sweep.subdir={job.row.folder}",
                    f"is also the folder of job {jobs_of[job.row.folder]}",
                    "use a different folder per job, such as '${hydra.job.num}'",
                )
            if job.config.mode is not jobs[0].config.mode:
                refused[job.row.job] = ConfigError("mode", "cannot differ between jobs", "plan first, then train")
        if not refused and jobs and jobs[0].config.mode is Mode.train and self._is_local_launcher():
            print_text("ippo: loading data and planning each configuration")
            refused = _plan_errors(jobs)
        if refused:
            raise refused_jobs_error(rows, refused)
        return jobs, done

    def _check_job(self, row: JobRow) -> CheckedJob:
        begun = self.resumed is not None and prepare_resume(self.resumed, row)
        try:
            node = self.loader.load_sweep_config(self.master, list(row.overrides))
            with open_dict(node):
                node.hydra.job.num = node.hydra.job.id = row.job
            HydraConfig.instance().set_config(node)
            row.folder = row.folder or str(node.hydra.sweep.subdir)
            check_agents(node, row.overrides)
            plain = resolve_config(node)
        except (HydraException, OmegaConfBaseException, UnknownKey, WrongConfig) as error:
            raise diagnose_error([*self.folders, *row.overrides], error) from error
        config = build_config(plain)
        check_config(config, world_size(config, None))
        check_tracker_packages(config.tracker)
        check_sweep_job(self.sweep, config)
        apply_sweep_settings(self.sweep, row, plain, config, begun=begun)
        if self.resumed is not None:
            check_job_resume(self.resumed / row.folder, plain, config)
            sweep_folder.set_state(row, "waiting", None, None)
        return CheckedJob(row, plain, config)

    def _is_basic_launcher(self) -> bool:
        return str(self.master.hydra.runtime.choices["hydra/launcher"]) == "basic"

    def _is_local_launcher(self) -> bool:
        return str(self.master.hydra.runtime.choices["hydra/launcher"]) in LOCAL_LAUNCHERS

    # ---- execution -----------------------------------------------------------------------------------------

    def _plan_jobs(self, jobs: Sequence[CheckedJob]) -> None:
        from ippo_cli.planning.plan import show_plan

        rows = [job.row for job in jobs]
        own = sweep_folder.distinct_overrides(rows)
        if not self._is_basic_launcher():
            launcher = self.master.hydra.runtime.choices["hydra/launcher"]
            print_text(f"planned for this machine, not for those of hydra/launcher={launcher}; see plan=")
        refused: dict[int, IppoError] = {}
        for job in jobs:
            print_text(f"[{job.row.job}/{len(jobs)}] {own[job.row.job]}")
            try:
                show_plan(job.config)
            except IppoError as error:
                refused[job.row.job] = error
        if refused:
            raise refused_jobs_error(rows, refused)

    def _run_and_report(
        self, folder: Path, rows: Sequence[JobRow], total: int | None, work: Callable[[SweepContext], None]
    ) -> None:
        """Lock the folder, write `sweep.json`, call `work`, then print the table and raise the error of the sweep."""
        ignore_closed_output()
        with open_dict(self.master):
            self.master.hydra.sweep.dir = str(folder)
        error: str | None = None
        with ExitStack() as held:
            held.enter_context(lock_folder(folder))
            context = SweepContext(
                folder,
                socket.gethostname(),
                os.getpid(),
                ("ippo-train", *sys.argv[1:]),
                tuple(self.folders),
                self.resumed is not None,
                total,
                sweep_folder.start_attempt(folder),
            )
            (folder / STOP_FILE).unlink(missing_ok=True)
            sweep_folder.create_sweep_file(folder, self.typed_now, rows)
            held.enter_context(SignalForwarding(folder))
            try:
                work(context)
            except Exception as problem:  # from the launcher or the sweeper; jobs report their own errors
                error = f"{type(problem).__name__}: {problem}"
                if not isinstance(problem, IppoError) and not (folder / STOP_FILE).exists():
                    traceback.print_exc()
        self.report(folder, error)

    def _run_jobs(self, search: Search, context: SweepContext, plains: dict[int, dict[str, Any]]) -> None:
        def compose(row: JobRow) -> dict[str, Any]:
            return self._check_job(row).plain

        if self._is_basic_launcher():
            run_search(search, context, self.sweep.max_parallel, compose, plains)
        else:
            run_search_in_rounds(search, context, partial(self._run_launcher, context), compose, plains)

    def _run_launcher(self, context: SweepContext, rows: Sequence[JobRow]) -> None:
        callbacks = Callbacks(self.master)
        callbacks.on_multirun_start(config=self.master, config_name=self.config_name)
        launcher = Plugins.instance().instantiate_launcher(
            hydra_context=HydraContext(config_loader=self.loader, callbacks=callbacks),
            task_function=partial(run_job, context),
            config=self.master,
        )
        batch = self.master.hydra.sweeper.max_batch_size or len(rows) or 1
        for first in range(0, len(rows), batch):
            texts = [
                [*row.overrides, *_folder_overrides(context.folder, row.folder)] for row in rows[first : first + batch]
            ]
            launcher.launch(texts, initial_job_idx=first + 1)
        callbacks.on_multirun_end(config=self.master, config_name=self.config_name)

    def _run_sweeper(self, context: SweepContext) -> None:
        callbacks = Callbacks(self.master)
        callbacks.on_multirun_start(config=self.master, config_name=self.config_name)
        self.master.hydra.overrides.hydra.append(_folder_overrides(context.folder)[0])
        sweeper = Plugins.instance().instantiate_sweeper(
            hydra_context=HydraContext(config_loader=self.loader, callbacks=callbacks),
            task_function=partial(run_job, context),
            config=self.master,
        )
        sweeper.sweep(arguments=self.overrides)
        callbacks.on_multirun_end(config=self.master, config_name=self.config_name)


def _folder_overrides(folder: Path, subdir: str | None = None) -> list[str]:
    """Overrides that set the folder of the sweep, and the subfolder of a job."""
    quoted = QuotedString(text=str(folder), quote=Quote.single).with_quotes()
    if subdir is None:
        return [f"hydra.sweep.dir={quoted}"]
    return [
        f"hydra.sweep.dir={quoted}",
        f"hydra.sweep.subdir={QuotedString(text=subdir, quote=Quote.single).with_quotes()}",
    ]


def _plan_errors(jobs: Sequence[CheckedJob]) -> dict[int, IppoError]:
    """The errors of `mode=plan` by job. Configurations that differ only in the seed are planned once."""
    jobs_by_config: dict[str, list[CheckedJob]] = {}
    for job in jobs:
        jobs_by_config.setdefault(repr(replace(job.config, seed=0)), []).append(job)
    groups = list(jobs_by_config.values())
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "jobs.json"
        file.write_text(json.dumps([group[0].plain for group in groups]))
        ended = subprocess.run([sys.executable, "-m", "ippo_cli.cli.plan_jobs", str(file)], check=False)
        if ended.returncode != 0:
            raise SweepRefused(
                f"the jobs cannot be checked: the planning process exited with code {ended.returncode}; "
                "see its output above",
                UNEXPECTED,
            )
        answers = json.loads(file.read_text())
    return {
        job.row.job: SweepRefused(*answer)
        for group, answer in zip(groups, answers, strict=True)
        if answer is not None
        for job in group
    }
