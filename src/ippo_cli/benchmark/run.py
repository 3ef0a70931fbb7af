"""Trains an entry of this program: a team and its control arms, through `controls`, and writes the result."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from ippo_cli import __version__
from ippo_cli.benchmark.baseline import INDEPENDENT_PPO, SMALL, list_settings
from ippo_cli.benchmark.result import ArmRun, CrossPlay, Result, write_result
from ippo_cli.benchmark.tasks import BENCHMARK_TASKS, SCORE, BenchmarkTask
from ippo_cli.benchmark.version import task_version
from ippo_cli.config.commands import shell_command
from ippo_cli.config.errors import ConfigError, PreflightError, combine_errors
from ippo_cli.config.secrets import mask_secrets
from ippo_cli.controls.arms import OTHER_SEEDS, TEAM, ControlPlan, override_key, replace_keys
from ippo_cli.controls.assess import cross_play_pairs, run_name
from ippo_cli.controls.compare_arms import run_comparison
from ippo_cli.controls.runs import ControlRun, Runs, read_cross_play, run_evaluation
from ippo_cli.controls.settings import Differences
from ippo_cli.runs.folder import display_path, print_warning, write_atomically
from ippo_cli.runs.output import print_text
from ippo_cli.runs.records import RunRecord
from ippo_cli.sweeps.folder import STOP_FILE

RESULT_FILE = "result.json"
ENTRY, SEEDS = "ippo", "5"  # defaults
EVERY_RUN = (
    "tracker.tensorboard=false",
    "tracker.samples_every=0",
    "tracker.report=false",
    "checkpoint.best=false",
    "launch.threads=1",
)
# Keys that define the task or how it is scored, and groups and files that may contain them.
FIXED = re.compile(r"task(?!\.agents\.\w+[./](actor|critic)\b)|reward|evaluation(?!\.every\b)|experiment\b")
REMEDY = "leave it out; the benchmark fixes the task and its score"


def run_entry(name: str, own: Mapping[str, str], typed: Sequence[str], controls_keys: Sequence[str]) -> None:
    """Train what is missing of an entry and write its result. Raises `ConfigError` or what training raises.

    `own`: values of the command's own keys; those of ippo-controls override the defaults of the task.
    `typed`: overrides of the entry.
    """
    task = BENCHMARK_TASKS[name]
    entry = own.get("entry", ENTRY)
    check_overrides(task, typed)
    # The version: runs with former rules are not continued, and not published as those of these rules.
    overrides = [*list_entry_overrides(task, typed), f"name={name}-{entry}-{task_version(name)}"]
    controls = list_control_settings(task, own)
    target = Path(own["to"]) if "to" in own else None
    run_comparison(
        [*overrides, *controls],
        controls_keys,
        command=shell_command("ippo-bench", "run", name, *(f"{key}={value}" for key, value in own.items()), *typed),
        report=partial(_write_entry, name, entry, target),
    )


def check_overrides(task: BenchmarkTask, typed: Sequence[str]) -> None:
    """Raise `ConfigError` for overrides that would change the task, its score, or the folder of the entry."""
    fixed = {override_key(text) for text in task.overrides}
    errors = []
    for text in typed:
        key = override_key(text)
        if key in fixed or FIXED.match(key):
            errors.append(ConfigError(text, "changes the task or its score", REMEDY))
        elif key == "name":
            errors.append(ConfigError(text, "is the name of the entry", f"use entry={text.partition('=')[2]}"))
    if errors:
        raise combine_errors(errors)


def list_entry_overrides(task: BenchmarkTask, typed: Sequence[str]) -> list[str]:
    """Return the overrides of the team: those of the task, of an entry, and, where it sets none, of the baseline.

    A group that the entry chooses, such as `actor=full`, replaces all settings of the baseline in this group.
    """
    groups = tuple(
        f"{override_key(text)}." for text in typed if "." not in override_key(text) and "=" in text and "/" not in text
    )
    metric = [] if task.metric == SCORE else [f"task.primary_metric={task.metric}"]
    baseline = [*EVERY_RUN, *list_settings(task, INDEPENDENT_PPO, SMALL), *metric]
    defaults = [
        text for text in baseline if text in task.overrides or not override_key(text).startswith(groups or ("\0",))
    ]
    return replace_keys(defaults, typed)


def list_control_settings(task: BenchmarkTask, own: Mapping[str, str]) -> list[str]:
    """Return the settings of ippo-controls: the typed ones, and those of the task for others."""
    typed = {key: value for key, value in own.items() if key.startswith("controls.")}
    arms = typed.get("controls.arms", "" if task.arms is None else f"[{','.join(task.arms)}]")
    settings = {"controls.seeds": own.get("seeds", SEEDS)}
    if typed.get("controls.differences") != Differences.normal.value:  # which depend on no range
        settings["controls.range"] = "[{:g},{:g}]".format(*task.score_range)
    if arms:
        settings["controls.arms"] = arms
    if task.single and (not arms or "single" in arms):
        settings["controls.single"] = shlex.join(task.single)
    return [f"{key}={value}" for key, value in {**settings, **typed}.items()]


def _write_entry(name: str, entry: str, target: Path | None, plan: ControlPlan, folder: Path, runs: Runs) -> None:
    """Write the result of the finished runs, if the team has one. After a signal the same command writes it later."""
    if (folder / STOP_FILE).exists() or not any(run.score is not None for (arm, _), run in runs.items() if arm == TEAM):
        return
    task = BENCHMARK_TASKS[name]
    found: list[ArmRun] = []
    missing = dict(plan.refused)
    for arm in (TEAM, *plan.arms):
        if arm == OTHER_SEEDS:
            continue
        own = [run for (known, _), run in runs.items() if known == run_name(plan, arm, runs) and run.is_finished]
        found += [_to_arm_run(task, arm, run) for run in own]
        if not own:
            missing[arm] = "no run is finished"
    pairs = [(pair, read_cross_play(folder, pair)) for pair in cross_play_pairs(plan, runs)]
    cross_play = [
        CrossPlay(seeds=list(pair), self_play=scores.self_play, cross_play=scores.cross_play)
        for pair, scores in pairs
        if scores is not None and OTHER_SEEDS in plan.arms
    ]
    if OTHER_SEEDS in plan.arms and not cross_play:
        missing[OTHER_SEEDS] = "no pair of seeds is finished"
    result = Result(
        schema=1,
        task=name,
        version=task_version(name),
        entry=entry,
        trainer=f"ippo-cli {__version__}",
        metric=task.score_name,
        overrides=mask_secrets(list(plan.team)),
        alpha=plan.alpha,
        differences=plan.differences,
        range=list(task.score_range),
        arms=list(plan.arms),
        missing=missing,
        runs=found,
        cross_play=cross_play,
    )
    for file in (folder / RESULT_FILE, *([target] if target else [])):
        write_result(result, file)
        print_text(f"ippo: result of {entry} on {name} -> {display_path(file)}")


def _to_arm_run(task: BenchmarkTask, arm: str, run: ControlRun) -> ArmRun:
    score, error = run.score, None if run.score is not None else run.error or "no score"
    if score is not None and task.game is not None:
        try:
            score = read_nash_conv(run.folder)
        except PreflightError as failure:
            print_warning(str(failure))
            score, error = None, str(failure)
    size = int(RunRecord(run.folder).config["rollout"]["buffer_size"]) if run.score is not None else None
    return ArmRun(
        arm=arm,
        seed=run.seed,
        score=score,
        tokens=run.tokens,
        episodes=None if size is None else run.iterations * size,
        error=error,
    )


def read_nash_conv(run: Path) -> float:
    """Return the negative NashConv of a finished run, computed once. Raises `PreflightError`."""
    file = run.parent / "nash_conv" / f"{run.name}.json"  # evaluations of the run may be of other checkpoints
    if not file.is_file():
        record = run_evaluation(run, (f"run={run}", "exploitability=exact"), "exploitability-*.json")
        file.parent.mkdir(exist_ok=True)
        write_atomically(file, json.dumps({"nash_conv": float(record["exploitability"]["nash_conv"])}) + "\n")
    return min(-json.loads(file.read_text())["nash_conv"], 0.0)


def list_seeds(own: Mapping[str, str]) -> range:
    """Return the seeds of `seeds=` and `seed=`. Raises `ConfigError`."""
    numbers = {}
    for key, default, least in (("seeds", SEEDS, 1), ("seed", "0", 0)):
        text = own.get(key, default)
        if not text.isdigit() or int(text) < least:
            raise ConfigError(f"{key}={text}", f"is not a whole number from {least}", f"use {key}={default}")
        numbers[key] = int(text)
    return range(numbers["seed"], numbers["seed"] + numbers["seeds"])
