"""Writes the page of runs, and files beside it; chooses their folder and title."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ippo_cli.config.errors import ConfigError, ResumeError, convert_storage_errors
from ippo_cli.config.tables import format_csv, format_latex, format_markdown
from ippo_cli.runs.folder import print_warning, write_atomically
from ippo_cli.runs.records import RunRecord, find_runs

REPORT_NAME = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """What to write beside the page, with the page's name and another suffix."""

    csv: bool = False
    markdown: bool = False
    latex: bool = False
    png: bool = False


def collect_runs(paths: Sequence[Path]) -> list[RunRecord]:
    """The runs at and below these folders, each once; warns about those that cannot be read, and skips them.

    Raises `ConfigError` for a folder without a run, and `ResumeError` if no run can be read.
    """
    runs: dict[Path, RunRecord] = {}
    for path in paths:
        if not path.is_dir():
            raise ConfigError(str(path), "is not a folder", "use a run's folder, or a folder of runs or of a sweep")
        found = find_runs(path)
        if not found:
            raise ConfigError(
                str(path), "contains no run (run.json)", "use a run's folder, or a folder of runs or of a sweep"
            )
        runs |= {run.folder.resolve(): run for run in found if run.folder.resolve() not in runs}
    return _skip_unreadable([*runs.values()])


def _skip_unreadable(runs: Sequence[RunRecord]) -> list[RunRecord]:
    readable: list[RunRecord] = []
    failures: list[ResumeError] = []
    for run in runs:
        try:
            _ = run.state
        except ResumeError as error:
            failures.append(error)
        else:
            readable.append(run)
    if not readable:
        raise failures[0]
    for error in failures:
        print_warning(f"{error}; the report is without it")
    return readable


def default_target(runs: Sequence[RunRecord]) -> Path:
    """`report.html` in the folder of the run, or in the common folder of several runs."""
    return Path(os.path.commonpath([run.folder.absolute() for run in runs])) / REPORT_NAME


def default_title(runs: Sequence[RunRecord]) -> str:
    """The experiment and the run, or the experiments and the number of runs."""
    names = list(dict.fromkeys(str(run.config.get("name") or run.folder.parent.name) for run in runs))
    if len(runs) == 1:
        return f"{names[0]} · {runs[0].folder.name}"
    return f"{', '.join(names[:3])}{' and more' if len(names) > 3 else ''} · {len(runs)} runs"


def write_report(
    runs: Sequence[RunRecord], target: Path, title: str | None = None, options: ReportOptions | None = None
) -> list[Path]:
    """Write the page and the files of `options`; returns their paths. Raises `StorageError`."""
    from ippo_cli.report.page import build_page

    options, title = options or ReportOptions(), title or default_title(runs)
    writers = _writers(runs, title, options)
    with convert_storage_errors(str(target.parent)):
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, build_page(runs, title))
        for suffix, write in writers.items():
            write(target.with_suffix(suffix))
    return [target, *(target.with_suffix(suffix) for suffix in writers)]


def _writers(runs: Sequence[RunRecord], title: str, options: ReportOptions) -> dict[str, Callable[[Path], None]]:
    """By suffix, what writes the file."""
    from ippo_cli.report.picture import draw_runs
    from ippo_cli.report.score_tables import metric_table, score_rows

    found: dict[str, Callable[[Path], None]] = {}
    if options.csv:
        found[".csv"] = lambda file: write_atomically(file, format_csv(metric_table(runs)))
    if options.markdown:
        found[".md"] = lambda file: write_atomically(file, format_markdown(score_rows(runs)))
    if options.latex:
        found[".tex"] = lambda file: write_atomically(file, format_latex(score_rows(runs)))
    if options.png:
        found[".png"] = lambda file: draw_runs(runs, file, title)
    return found
