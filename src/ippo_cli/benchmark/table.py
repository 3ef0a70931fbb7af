"""Tables of tasks and results: scores with intervals over seeds, differences to control arms, and what is settled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ippo_cli.benchmark.bounds import UNKNOWN, Bounds
from ippo_cli.benchmark.result import Result, read_result
from ippo_cli.benchmark.tasks import BENCHMARK_TASKS
from ippo_cli.config.errors import PreflightError
from ippo_cli.config.text import format_table
from ippo_cli.controls.arms import OTHER_SEEDS, TEAM
from ippo_cli.controls.assess import UNDECIDED, ArmResult, difference_bounds
from ippo_cli.controls.report import format_tokens
from ippo_cli.runs.folder import display_path, write_atomically
from ippo_cli.runs.intervals import mean_interval

TASK_HEADINGS = ("task", "what agents do", "interests", "turns", "random", "one learns", "best")
SCORE_HEADINGS = ("task", "entry", "trainer", "seeds", "score", "normalised", "episodes", "tokens")
ARM_HEADINGS = ("task", "entry", "arm", "differences", "team minus arm", "verdict")
NOTES = (
    "score: mean over seeds of the held-out score; normalised: 0 is random play, 1 is optimal play, with a 95 % "
    "t-interval over seeds",
    "team minus arm: paired by seed, normalised, with a confidence sequence that holds at all seeds together; the "
    "error probability is split over the arms of an entry",
    "episodes and tokens: of one training of the team, all agents",
)
Rows = list[tuple[str, ...]]


def read_results(paths: Sequence[Path]) -> list[Result]:
    """Read files, and all JSON files of folders, in the order of tasks. Raises `PreflightError`."""
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not found:
            raise PreflightError(f"{display_path(path)}: has no JSON file; name files that ippo-bench has written")
        files += found
    order = list(BENCHMARK_TASKS)
    results = [read_result(file) for file in files]
    seen: dict[tuple[str, str], Path] = {}
    for result, file in zip(results, files, strict=True):
        key = (result.task, result.entry)
        if key in seen:
            rule = f"has the entry {result.entry} on {result.task}, as {display_path(seen[key])} has"
            raise PreflightError(f"{display_path(file)}: {rule}; leave one of them out")
        seen[key] = file
    return sorted(results, key=lambda result: (order.index(result.task), result.entry))


def list_task_rows() -> Rows:
    """Return the rows of the table of tasks, with headings."""
    return [TASK_HEADINGS, *(_task_row(name) for name in BENCHMARK_TASKS)]


def _task_row(name: str) -> tuple[str, ...]:
    task, bounds = BENCHMARK_TASKS[name], BENCHMARK_TASKS[name].bounds()
    scores = (_bound_cell(bounds, which) for which in ("random", "single", "best"))
    return (name, task.about.replace("`", ""), task.kind.value, task.turns, *scores)


def _bound_cell(bounds: Bounds, name: str) -> str:
    value, source = getattr(bounds, name), bounds.source(name)
    return UNKNOWN if value is None else f"{value:.3f} {source}"


@dataclass(frozen=True, slots=True)
class Unit:
    """The scale of the scores of a task: normalised, if its bounds are known."""

    bounds: Bounds

    def scale_score(self, score: float) -> float:
        """Return a score on the scale."""
        found = self.bounds.normalise(score)
        return score if found is None else found

    def scale_difference(self, difference: float) -> float:
        """Return a difference of two scores on the scale."""
        if self.bounds.random is None or self.bounds.best is None:
            return difference
        return difference / (self.bounds.best - self.bounds.random)


def list_score_rows(results: Sequence[Result]) -> Rows:
    """Return the rows of the table of scores, with headings."""
    return [SCORE_HEADINGS, *map(_score_row, results)]


def _score_row(result: Result) -> tuple[str, ...]:
    bounds = BENCHMARK_TASKS[result.task].bounds()
    runs = list(result.runs_of(TEAM).values())
    scores = [run.score for run in runs if run.score is not None]
    raw, scaled = mean_interval(scores), mean_interval([Unit(bounds).scale_score(score) for score in scores])
    failed = len(runs) - len(scores)
    return (
        result.task,
        result.entry,
        result.trainer,
        f"{len(scores)}" + (f" ({failed} failed)" if failed else ""),
        "-" if raw is None else f"{raw.mean:.3f}",
        "-" if scaled is None else _format_interval(scaled.mean, scaled.low, scaled.high),
        _mean_cell([run.episodes for run in runs if run.score is not None]),
        _mean_cell([run.tokens for run in runs if run.score is not None]),
    )


def _mean_cell(counts: Sequence[int | None]) -> str:
    known = [count for count in counts if count is not None]
    return format_tokens(sum(known) / len(known)) if known and len(known) == len(counts) else "-"


def _format_interval(mean: float, low: float | None, high: float | None) -> str:
    bounds = "" if low is None or high is None else f" [{low:.3f}, {high:.3f}]"
    return f"{mean:.3f}{bounds}"


def compare_with_arms(result: Result) -> list[ArmResult]:
    """Return the differences to each arm that has runs, in the order of the seeds."""
    return [found for arm in result.arms if (found := _compare_with_arm(result, arm)).differences]


def _compare_with_arm(result: Result, arm: str) -> ArmResult:
    if arm == OTHER_SEEDS:
        pairs = sorted(result.cross_play, key=lambda pair: pair.seeds)
        found = [(pair.seeds[0], pair.self_play - pair.cross_play) for pair in pairs]
    else:
        team, own = result.runs_of(TEAM), result.runs_of(arm)
        found = [
            (seed, run.score - other.score)
            for seed, run in team.items()
            if run.score is not None and (other := own.get(seed)) is not None and other.score is not None
        ]
    differences = [difference for _, difference in found]
    limits = (result.range[0], result.range[1])
    lower, upper = difference_bounds(differences, result.differences, limits, result.alpha / len(result.arms))
    return ArmResult(name=arm, seeds=[seed for seed, _ in found], differences=differences, lower=lower, upper=upper)


def list_arm_rows(results: Sequence[Result]) -> Rows:
    """Return the rows of the table of control arms, with headings; arms without runs have a reason."""
    return [ARM_HEADINGS, *(row for result in results for row in _arm_rows(result))]


def _arm_rows(result: Result) -> Iterator[tuple[str, ...]]:
    unit = Unit(BENCHMARK_TASKS[result.task].bounds())
    for found in compare_with_arms(result):
        assert found.mean is not None
        bounds = (unit.scale_difference(bound) for bound in (found.mean, found.lower[-1], found.upper[-1]))
        pairs = " pairs" if found.name == OTHER_SEEDS else ""
        count = f"{len(found.differences)}{pairs}"
        yield result.task, result.entry, found.name, count, _format_interval(*bounds), found.verdict


def list_verdicts(results: Sequence[Result]) -> Iterator[str]:
    """Yield what is settled, what is not, and which arms are missing, one line for each entry and kind."""
    for result in results:
        name, arms = f"{result.task}, {result.entry}", compare_with_arms(result)
        settled = [f"{found.verdict} than {found.name}" for found in arms if found.verdict != UNDECIDED]
        unsettled = [found.name for found in arms if found.verdict == UNDECIDED]
        if settled:
            yield f"settled ({name}): {', '.join(settled)}"
        if unsettled:
            yield f"not settled ({name}): {', '.join(unsettled)}"
        if result.missing:
            yield f"missing ({name}): {', '.join(result.missing)}"


def list_failures(results: Sequence[Result]) -> Iterator[str]:
    """Yield one line for every result with failed runs."""
    for result in results:
        failed = [f"{run.arm}-{run.seed}" for run in result.runs if run.score is None]
        if failed:
            yield f"failed and not counted ({result.task}, {result.entry}): {', '.join(failed)}"


def format_results(results: Sequence[Result], *, is_page: bool) -> str:
    """Return the tables and notes of results, for a page or a terminal."""
    table = format_markdown if is_page else lambda rows: "\n".join(format_table(rows))
    verdicts = [*list_verdicts(results), *list_failures(results)]
    arms = list_arm_rows(results)
    parts = [table(list_score_rows(results)), table(arms) if arms[1:] else "", _bullets(verdicts), _bullets(NOTES)]
    return "\n\n".join(part for part in parts if part)


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def format_markdown(rows: Rows) -> str:
    """Return rows as a table in Markdown; the first row is the heading."""
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    lines.insert(1, "|---" * len(rows[0]) + "|")
    return "\n".join(lines)


def replace_block(page: Path, name: str, text: str) -> None:
    """Replace the text between `<!-- NAME -->` and `<!-- /NAME -->` of a page. Raises `PreflightError` without them."""
    try:
        content = page.read_text()
    except OSError as error:
        raise PreflightError(
            f"page={display_path(page)}: cannot be read ({error.strerror}); name a Markdown file"
        ) from error
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if len(pattern.findall(content)) != 1:
        marks = f"<!-- {name} --> and <!-- /{name} -->"
        raise PreflightError(f"page={display_path(page)}: has not one place for the table; add the lines {marks}")
    write_atomically(page, pattern.sub(lambda found: f"{found[1]}{text}\n{found[2]}", content))
