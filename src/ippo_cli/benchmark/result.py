"""The schema of results: one JSON file for one entry on one task, with the runs of the team and of its control arms."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ippo_cli.benchmark.replay import is_playable
from ippo_cli.benchmark.tasks import BENCHMARK_TASKS
from ippo_cli.benchmark.version import task_version
from ippo_cli.compose.validate import to_plain, validate_values
from ippo_cli.config.errors import ConfigError, PreflightError, convert_storage_errors, split_errors
from ippo_cli.controls.arms import TEAM
from ippo_cli.controls.assess import is_in_range
from ippo_cli.controls.settings import Differences
from ippo_cli.runs.folder import display_path, print_warning, write_atomically

SCHEMA = 1


@dataclass(kw_only=True)
class ArmRun:
    """One training of the team or of a control arm."""

    arm: str
    seed: int
    score: float | None  # on the held-out rows; null: the run failed
    tokens: int | None  # generated in training by all agents; null: not known
    episodes: int | None  # of training; null: not known
    error: str | None  # of a failed run


@dataclass(kw_only=True)
class CrossPlay:
    """Scores of the agents of two runs of the team, each with its own partners and with those of the other run."""

    seeds: list[int]
    self_play: float
    cross_play: float


@dataclass(kw_only=True)
class Result:
    """One entry on one task. All fields are required."""

    schema: int
    task: str
    version: str  # hash of the task's rules and rows: results of different versions are not compared
    entry: str
    trainer: str  # program and version
    metric: str  # what a score is
    overrides: list[str]  # of the team; empty for other trainers
    alpha: float  # probability of any false verdict over all arms, fixed before the first seed
    differences: Differences  # assumption of the confidence sequences
    range: list[float]  # lowest and highest possible score
    arms: list[str]  # control arms, fixed before the first seed
    missing: dict[str, str]  # arms without runs, and why
    runs: list[ArmRun]
    cross_play: list[CrossPlay]  # of the arm other_seeds

    def runs_of(self, arm: str) -> dict[int, ArmRun]:
        """Return the runs of the team or an arm by seed, in the order of the seeds."""
        return {run.seed: run for run in sorted(self.runs, key=lambda run: run.seed) if run.arm == arm}


def write_result(result: Result, file: Path) -> None:
    """Write a result. Raises `PreflightError` if it breaks a rule of the schema, `StorageError` for the file."""
    _check_rules(result, file)
    with convert_storage_errors(str(file)):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(to_plain(result), indent=1, allow_nan=False) + "\n")


def read_result(file: Path) -> Result:
    """Read and validate a result. Raises `PreflightError` with the file, the field, the rule and the remedy."""
    try:
        plain = json.loads(file.read_text(), parse_constant=_refuse_constant)
    except (OSError, ValueError) as error:
        raise PreflightError(f"{display_path(file)}: cannot be read ({error}); {RESULT_REMEDY}") from error
    if not isinstance(plain, dict):
        raise PreflightError(f"{display_path(file)}: is a {type(plain).__name__}; a result is one JSON object")
    try:
        result = validate_values(Result, plain)
    except ConfigError as error:
        lines = "; ".join(str(one) for one in split_errors(error))
        raise PreflightError(f"{display_path(file)}: {lines}") from error
    # Validation accepts numbers that are written as text, as a command line does.
    converted = next(_find_conversions(plain, to_plain(result)), None)
    if converted is not None:
        key, value = converted
        raise PreflightError(f"{display_path(file)}: {key}={value!r} has the wrong type; write a number without quotes")
    _check_rules(result, file)
    return result


RESULT_REMEDY = "use a file that ippo-bench has written"


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a score")


def _find_conversions(plain: Any, read: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield keys and values that were converted, or that are missing although the class has a default."""
    if isinstance(read, dict) and isinstance(plain, dict):
        for name, value in read.items():
            yield from _find_conversions(plain.get(name), value, f"{key}.{name}".lstrip("."))
    elif isinstance(read, list) and isinstance(plain, list):
        for place, (one, other) in enumerate(zip(plain, read, strict=True)):
            yield from _find_conversions(one, other, f"{key}[{place}]")
    elif plain != read or isinstance(plain, bool) != isinstance(read, bool):
        yield key, plain


def _check_rules(result: Result, file: Path) -> None:
    for rule in _find_broken_rules(result):
        raise PreflightError(f"{display_path(file)}: {rule}")


def _find_broken_rules(result: Result) -> Iterator[str]:
    """Yield `field=value rule; remedy` for what the types alone do not say."""
    if result.schema != SCHEMA:
        yield f"schema={result.schema} is not the version of this program, {SCHEMA}; use the program that wrote it"
    if result.task not in BENCHMARK_TASKS:
        yield f"task={result.task} is not a task; ippo-bench list has all"
    if not is_playable(result.task):  # a table of other tasks must not need the package
        package = BENCHMARK_TASKS[result.task].package
        remedy = f"pip install 'ippo-cli[{package}]'"
        print_warning(f"version={result.version} of {result.task} is not checked without {package}; {remedy}")
    elif (version := task_version(result.task)) != result.version:
        yield (
            f"version={result.version} is another version of {result.task}, which is {version} here; "
            "scores of different versions are not compared: run or import the entry again"
        )
    if len(result.range) != 2 or not -math.inf < result.range[0] < result.range[1] < math.inf:
        yield f"range={result.range} is not a lower and an upper limit; write [0, 1]"
    if not 0 < result.alpha < 1:
        yield f"alpha={result.alpha:g} is not a probability; use 0.05"
    counts = Counter((run.arm, run.seed) for run in result.runs)
    for (arm, seed), count in counts.items():
        if count > 1:
            yield f"runs: {arm} has {count} runs with seed {seed}; keep one"
    for run in result.runs:
        yield from _find_broken_rules_of_run(run, result)
    for pair in result.cross_play:
        if len(pair.seeds) != 2 or pair.seeds[0] == pair.seeds[1]:
            yield f"cross_play: seeds={pair.seeds} are not two seeds; write [0, 1]"
        if not all(map(math.isfinite, (pair.self_play, pair.cross_play))):
            yield f"cross_play: seeds={pair.seeds} have a score that is not finite; remove the pair"
    if not any(run.arm == TEAM for run in result.runs):
        yield f"runs: none is of the arm {TEAM}; a result without it compares nothing"


def _find_broken_rules_of_run(run: ArmRun, result: Result) -> Iterator[str]:
    low, high = result.range
    if run.arm not in (TEAM, *result.arms):
        yield f"runs: arm={run.arm} is not among arms={result.arms}; add it"
    if (run.score is None) == (run.error is None):
        yield f"runs: {run.arm} with seed {run.seed} has a score and an error, or neither; a failed run has score null"
    if run.score is not None and not is_in_range(run.score, low, high):
        yield f"runs: {run.arm} with seed {run.seed} has the score {run.score}, outside of range={result.range}"
    for name in ("tokens", "episodes"):
        if (count := getattr(run, name)) is not None and count < 0:
            yield f"runs: {run.arm} with seed {run.seed} has {name}={count}; use null if it is not known"
