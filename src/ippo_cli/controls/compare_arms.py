"""Runs a comparison in rounds, or reads one: `ippo-controls`."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ippo_cli.compose.configured import check_command_keys
from ippo_cli.compose.known_keys import check_known_keys
from ippo_cli.config.commands import last_value, parse_path, shell_command
from ippo_cli.config.errors import ConfigError, PreflightError, ResumeError
from ippo_cli.config.text import format_count
from ippo_cli.controls.arms import OTHER_SEEDS, SINGLE_SAMPLES, SINGLE_TOKENS, TEAM, ControlPlan, build_plan
from ippo_cli.controls.assess import (
    UNDECIDED,
    ArmResult,
    assess_arms,
    check_scores,
    cross_play_pairs,
    minimum_seeds,
    run_name,
    token_iterations,
)
from ippo_cli.controls.report import JSON_FILE, PAGE_FILE, check_same_comparison, format_terminal, write_report
from ippo_cli.controls.runs import (
    Runs,
    evaluate_cross_play,
    read_cross_play,
    read_evaluated,
    read_runs,
    run_folder_name,
)
from ippo_cli.controls.settings import PREFIX, ControlsConfig, parse_settings
from ippo_cli.runs.folder import display_path, is_run_locked, print_warning
from ippo_cli.runs.output import print_text
from ippo_cli.sweeps import folder as sweep_folder
from ippo_cli.sweeps.folder import STOP_FILE, JobRow
from ippo_cli.sweeps.multirun import run_search_sweep
from ippo_cli.sweeps.outcome import check_outcome, close_rows
from ippo_cli.sweeps.search import FINISHED, IndependentJobs


@dataclass
class ControlSearch(IndependentJobs):
    """A search of `sweeps`: its jobs depend on the scores of earlier rounds, and on nothing that is not in the folder.

    A round has all seeds without which there can be no verdict, later as many as train in parallel.
    """

    plan: ControlPlan
    max_parallel: int
    verdicts: dict[str, str] = field(default_factory=dict)  # that were printed
    failed_pairs: set[tuple[int, int]] = field(default_factory=set)  # seeds; the same command again tries them again

    @property
    def total(self) -> int:
        return self.plan.seeds * (1 + len([arm for arm in self.plan.arms if arm != OTHER_SEEDS]))

    def new_rows(self, folder: Path, rows: Sequence[JobRow]) -> list[JobRow]:
        if any(row.state not in FINISHED for row in rows):
            running = [row for row in rows if row.state == "running"]
            check_scores(self.plan, read_evaluated(folder, running))  # before further runs train with a wrong range
            if not (folder / JSON_FILE).exists():  # records the statistics before the first score
                runs = read_runs(folder, rows)
                write_report(self.plan, folder, assess_arms(self.plan, folder, runs), runs)
            return []
        runs = read_runs(folder, rows)
        self._evaluate_cross_play(folder, runs)
        results = assess_arms(self.plan, folder, runs)
        if rows:
            write_report(self.plan, folder, results, runs)
            self._print_verdicts(results)
        wanted = self._missing_runs(results, runs)
        return [self._row(len(rows) + place, *run, runs) for place, run in enumerate(wanted, start=1)]

    def _missing_runs(self, results: dict[str, ArmResult], runs: Runs) -> list[tuple[str, int]]:
        """The runs of the next round, by seed; runs that earlier seeds lack come first."""
        active = [name for name, result in results.items() if result.verdict == UNDECIDED]
        first, most = self.plan.first_seed, self.plan.seeds
        trained = sum(name == TEAM for name, _ in runs)
        if not active:
            return []
        if not trained:
            trained = min(minimum_seeds(self.plan), most)
        while trained <= most:
            found = [run for seed in range(first, first + trained) for run in self._runs_of_seed(seed, active, runs)]
            if found or trained == most:
                return found
            trained = min(trained + max(self.max_parallel // (1 + len(active)), 1), most)
        return []

    def _runs_of_seed(self, seed: int, active: Sequence[str], runs: Runs) -> Iterator[tuple[str, int]]:
        """The runs of a seed that do not exist yet."""
        names = [TEAM, *(run_name(self.plan, arm, runs) for arm in active if arm != OTHER_SEEDS)]
        if SINGLE_TOKENS in active and seed == self.plan.first_seed:
            names.append(SINGLE_SAMPLES)  # its tokens determine the iterations
        for name in dict.fromkeys(names):
            if name is not None and (name, seed) not in runs:
                yield name, seed

    def _row(self, job: int, name: str, seed: int, runs: Runs) -> JobRow:
        overrides = [*self.plan.overrides_of(name)]
        if name == SINGLE_TOKENS:
            replaced = ("num_iterations=", "num_epochs=")
            overrides = [text for text in overrides if not text.startswith(replaced)]
            overrides += [f"num_iterations={token_iterations(self.plan, runs)}", "num_epochs=null"]
        return JobRow(job=job, overrides=[*overrides, f"seed={seed}"], folder=run_folder_name(name, seed))

    def _evaluate_cross_play(self, folder: Path, runs: Runs) -> None:
        if OTHER_SEEDS not in self.plan.arms or (folder / STOP_FILE).exists():
            return
        for pair in cross_play_pairs(self.plan, runs):
            own = [runs[TEAM, seed] for seed in pair]
            is_known = read_cross_play(folder, pair) is not None or pair in self.failed_pairs
            if is_known or any(run.score is None for run in own):
                continue
            print_text(f"ippo: cross-play of seeds {pair[0]} and {pair[1]}")
            try:
                evaluate_cross_play(folder, pair, (own[0].folder, own[1].folder))
            except PreflightError as error:
                if (folder / STOP_FILE).exists():  # the signal has ended it
                    return
                self.failed_pairs.add(pair)
                print_warning(str(error))

    def _print_verdicts(self, results: dict[str, ArmResult]) -> None:
        for name, result in results.items():
            if result.verdict != UNDECIDED and self.verdicts.get(name) != result.verdict:
                count = format_count(len(result.differences), "pair of seeds" if name == OTHER_SEEDS else "seed")
                bounds = f"[{result.lower[-1]:.3f}, {result.upper[-1]:.3f}]"
                print_text(f"ippo: {name}: {result.verdict} after {count}, mean difference in {bounds}")
                self.verdicts[name] = result.verdict


PROGRAM = "ippo-controls"
Report = Callable[[ControlPlan, Path, Runs], None]


def run_comparison(
    argv: Sequence[str], keys: Sequence[str], *, command: str | None = None, report: Report | None = None
) -> None:
    """Train the missing runs of a comparison and print its table. Raises `ConfigError` or what `run_sweep` raises.

    `command`: what continues it; None: ippo-controls with the same arguments. `report`: what is done with the runs at
    the end, also if some of them failed; None: the table is printed.
    """
    own, typed = split_settings(argv, keys)
    settings = parse_settings(own)
    check_command_keys(typed, keys)
    check_known_keys(typed)
    plan = build_plan(typed, settings)
    if last_value(typed, "mode") == "plan":  # configurations that differ in the seed have the same plan
        plan = replace(plan, seeds=1)
    folder = comparison_folder(typed, settings)
    check_folder(folder)
    check_same_comparison(plan, folder)
    parallel = int(last_value(plan.of_sweep, "sweep.max_parallel") or 1)
    print_text(
        f"ippo: {format_count(len(plan.arms), 'arm')} beside the team: {' '.join(plan.arms)} -> {display_path(folder)}"
    )
    for name, reason in plan.refused.items():
        print_text(f"ippo: {name} is not trained: {reason}")
    if (least := minimum_seeds(plan)) > plan.seeds:
        print_warning(
            f"{PREFIX}seeds={plan.seeds}: no difference is decided before seed {least} with {len(plan.arms)} arms; "
            f"use more seeds, fewer arms ({PREFIX}arms=), or a larger {PREFIX}alpha"
        )
    run_search_sweep(
        [*plan.of_sweep, *plan.search_paths, *plan.team],
        folder,
        ControlSearch(plan, parallel),
        partial(_report, plan, command or shell_command(PROGRAM, *argv), report),
        argv,
    )


def print_comparison(folder: Path, keys: Sequence[str]) -> None:
    """Print the table of a comparison that runs, was stopped, or is finished. Trains nothing."""
    own, typed = split_settings(sweep_folder.read_arguments(folder), keys)
    plan = build_plan(typed, parse_settings(own))
    runs = read_runs(folder, sweep_folder.read_rows(folder))
    print_text(format_terminal(plan, assess_arms(plan, folder, runs), runs))


def split_settings(argv: Sequence[str], keys: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The values of the command's own keys, and the overrides of a run as they were typed."""
    parts = [(text, *text.partition("=")) for text in argv]
    own = {key: value for _, key, equals, value in parts if key in keys and equals}
    return own, [text for text, key, _, _ in parts if key not in own]


def comparison_folder(typed: Sequence[str], settings: ControlsConfig) -> Path:
    """The folder of a comparison: equal for equal overrides, so that the same command continues it."""
    if settings.to is not None:
        return parse_path(settings.to).absolute()
    own = sorted(text for text in typed if not sweep_folder.is_launcher_override(text))
    identity = json.dumps([own, settings.single, settings.no_messages])
    name = f"{last_value(typed, 'name') or 'default'}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
    return parse_path(last_value(typed, "output_dir") or "outputs").absolute() / "controls" / name


def _report(plan: ControlPlan, command: str, report: Report | None, folder: Path, error: str | None) -> None:
    """Print the table and write the report. Raises what `check_outcome` raises, or `ConfigError`."""
    rows = close_rows(folder, error)
    runs = read_runs(folder, rows)
    results = assess_arms(plan, folder, runs)
    write_report(plan, folder, results, runs)
    if report is not None:
        report(plan, folder, runs)
    else:
        print_text(f"\n{format_terminal(plan, results, runs)}\n\nwritten to {display_path(folder / PAGE_FILE)}")
    check_outcome(folder, rows, error, f"continue with: {command}")


def named_comparison(arguments: Sequence[str]) -> Path | None:
    """The folder of a comparison, if the arguments are a path alone. Raises `ConfigError` if it has no comparison."""
    if len(arguments) != 1 or "=" in arguments[0] or arguments[0].startswith(("-", "+", "~")):
        return None
    folder = parse_path(arguments[0]).absolute()
    if not _has_comparison(folder):
        rule = "is not the folder of a comparison" if folder.exists() else "does not exist"
        raise ConfigError(arguments[0], rule, f"name a folder that {PROGRAM} has printed, or give overrides")
    return folder


def _has_comparison(folder: Path) -> bool:
    """Whether a comparison was started in a folder, and not an ordinary sweep."""
    if not (folder / sweep_folder.SWEEP_FILE).is_file():
        return False
    return any(row.folder.startswith(f"{TEAM}-") for row in sweep_folder.read_rows(folder))


def check_folder(folder: Path) -> None:
    """Raise `ConfigError` or `ResumeError` if this comparison cannot run in a folder now."""
    remedy = f"use another folder: {PREFIX}to=FOLDER"
    setting = f"{PREFIX}to={display_path(folder)}"
    if folder.exists() and not folder.is_dir():
        raise ConfigError(setting, "is a file", remedy)
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    if not existing.is_dir():
        raise ConfigError(setting, f"cannot be created: {display_path(existing)} is a file", remedy)
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(setting, f"cannot be written: {display_path(existing)} is read-only", remedy)
    if is_run_locked(folder):
        raise ResumeError(
            f"{display_path(folder)}: this comparison is running in another process; wait for its end, or print its "
            f"table: {shell_command(PROGRAM, display_path(folder))}"
        )
    if folder.is_dir() and any(folder.iterdir()) and not _has_comparison(folder):
        raise ConfigError(setting, "has other files, and no comparison", remedy)
