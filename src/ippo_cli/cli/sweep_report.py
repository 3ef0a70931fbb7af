"""`ippo-sweep FOLDER`: report a running or finished sweep as a table, a picture, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from ippo_cli.cli.command_keys import OWN_KEYS
from ippo_cli.cli.entry import run_command
from ippo_cli.cli.help import SWEEP_HELP
from ippo_cli.runs.output import ignore_closed_output, print_text

if TYPE_CHECKING:
    from ippo_cli.runs.intervals import MeanInterval
    from ippo_cli.sweeps.summary import Configuration, JobSummary, SweepSummary

TO_KEY = "to"
MAX_ERRORS = 20


def main() -> NoReturn:
    """Entry point."""
    run_command("ippo-sweep", SWEEP_HELP, write_report, command_keys=OWN_KEYS["ippo-sweep"], takes_overrides=False)


def write_report(argv: Sequence[str]) -> None:
    """Print the table; write JSON, CSV and the picture into the folder of the sweep or into `to=`."""
    from ippo_cli.config.errors import convert_storage_errors
    from ippo_cli.runs.folder import display_path, write_atomically
    from ippo_cli.sweeps.plot import can_draw, draw_summary
    from ippo_cli.sweeps.summary import summarize_sweep, to_json_data

    folder, to = _parse_folders(argv)
    ignore_closed_output("the report")
    summary = summarize_sweep(folder)
    print_text(format_summary(summary))
    with convert_storage_errors(str(to)):
        to.mkdir(parents=True, exist_ok=True)
        write_atomically(to / "summary.json", json.dumps(to_json_data(summary), indent=1) + "\n")
        write_atomically(to / "summary.csv", format_csv(summary))
        written = ["summary.json", "summary.csv"]
        if can_draw():
            draw_summary(summary, to / "summary.png")
            written.append("summary.png")
    print_text(f"written to {display_path(to)}: {' '.join(written)}")
    if not can_draw():
        print_text("summary.png is not drawn: matplotlib is not installed; pip install 'ippo-cli[bench]'")


def _parse_folders(argv: Sequence[str]) -> tuple[Path, Path]:
    """The folder of the sweep and the folder of the report. Raises `ConfigError`."""
    from ippo_cli.config.errors import ConfigError, combine_errors

    errors: list[ConfigError] = []
    folders = [text for text in argv if "=" not in text or Path(text).is_dir()]
    options = [text for text in argv if text not in folders]
    for text in options:
        if text.partition("=")[0] != TO_KEY or not text.partition("=")[2]:
            errors.append(ConfigError(text, "is not an option of ippo-sweep", f"use {TO_KEY}=FOLDER, or remove it"))
    remedy = "use the folder that contains sweep.json"
    if len(folders) != 1 or folders[0].startswith("-"):
        errors.append(ConfigError(" ".join(folders) or "FOLDER", "is not exactly one folder", remedy))
    elif not Path(folders[0]).is_dir():
        errors.append(ConfigError(folders[0], "is not a folder", remedy))
    if errors:
        raise combine_errors(errors)
    folder = Path(folders[0]).absolute()
    return folder, Path(options[-1].partition("=")[2]).absolute() if options else folder


def format_summary(summary: SweepSummary) -> str:
    """One line per configuration or population member, then failed jobs and the command that resumes the sweep."""
    from ippo_cli.config.text import format_count, format_table
    from ippo_cli.runs.folder import resume_command
    from ippo_cli.sweeps.summary import count_states

    states = ", ".join(f"{number} {state}" for state, number in count_states(summary.jobs).items())
    head = f"{format_count(len(summary.jobs), 'job')}: {states}" + (
        "; the sweep is running" if summary.going_on else ""
    )
    by_number = {job.number: job for job in summary.jobs}
    of_population = any(job.generation is not None for job in summary.jobs)
    if of_population:
        heading = ["generation", "member", "job", "from job", "values", "state", "last"]
        rows = [_member_row(job, by_number) for job in sorted(summary.jobs, key=_member_order)]
    else:
        heading = ["overrides", "state", "n", "first", "best", "last"]
        rows = [_configuration_row(group) for group in summary.configurations]
    body = "\n".join(format_table([heading, *rows]))
    metric = summary.metric or "score"
    note = f"{metric} on held-out data; best and last of a run" + (
        "" if of_population else ", means over the n finished jobs, with 95% t-intervals"
    )
    lines = [head, "", body, "", note, *_failure_lines(summary), *_incomplete_lines(summary)]
    missing = [str(job.number) for job in summary.jobs if job.state == "missing"]
    if summary.going_on and missing:
        which = f"job {missing[0]} has" if len(missing) == 1 else f"jobs {' '.join(missing)} have"
        lines.append(f"{which} no process, and the sweep still waits: stop it with Ctrl-C twice, then resume it")
    if summary.command is not None and summary.unfinished_jobs and (missing or not summary.going_on):
        lines.append(f"resume the missing jobs: {resume_command(summary.folder, sweep=True)}")
    return "\n".join(lines)


def _incomplete_lines(summary: SweepSummary) -> list[str]:
    """What the folders of jobs that are not running lack by their own records."""
    from ippo_cli.runs.missing_parts import find_missing_parts
    from ippo_cli.runs.records import RunRecord

    folders = {job.number: job.folder for job in summary.jobs if job.state != "running"}
    return [
        f"job {number} is incomplete: {text}"
        for number, folder in folders.items()
        if (folder / "run.json").is_file()
        for text in find_missing_parts(RunRecord(folder))
    ]


def _member_order(job: JobSummary) -> tuple[int, float]:
    return job.generation or 0, -(job.last if job.last is not None else float("-inf"))


def _configuration_row(group: Configuration) -> list[str]:
    last = group.mean_score("last")
    return [
        " ".join(group.overrides) or "(all equal)",
        ", ".join(_state_label(state, number, group) for state, number in group.state_counts.items()),
        str(last.count if last else 0),
        *(_format_mean(group.mean_score(name)) for name in ("first", "best", "last")),
    ]


def _state_label(state: str, number: int, group: Configuration) -> str:
    """A count and a state, such as `2 done`; running jobs with their highest iteration."""
    iterations = [job.iteration for job in group.jobs if job.state == state and job.iteration is not None]
    where = f" (iteration {max(iterations)})" if state == "running" and iterations else ""
    return f"{number} {state}{where}"


def _member_row(job: JobSummary, by_number: Mapping[int, JobSummary]) -> list[str]:
    """The row of a population member: its values, or only those that differ from its parent."""
    parent = by_number[job.parent].overrides if job.parent is not None else ()
    own = [text for text in job.overrides if text not in parent and not text.startswith("max_iterations_this_run=")]
    return [
        str(job.generation),
        str(job.member),
        str(job.number),
        "-" if job.parent is None else str(job.parent),
        " ".join(own) or ("unchanged" if job.parent is not None else ""),
        job.state,
        "-" if job.last is None else f"{job.last:.3f}",
    ]


def _format_mean(mean: MeanInterval | None) -> str:
    if mean is None:
        return "-"
    if mean.low is None or mean.high is None:
        return f"{mean.mean:.3f}"
    return f"{mean.mean:.3f} [{mean.low:.3f}, {mean.high:.3f}]"


def _failure_lines(summary: SweepSummary) -> list[str]:
    from ippo_cli.config.text import truncate_text
    from ippo_cli.sweeps.summary import FAILED_STATES

    failed = [job for job in summary.jobs if job.state in FAILED_STATES]
    lines = []
    for job in failed[:MAX_ERRORS]:
        own = " ".join([*job.overrides, *([f"seed={job.seed}"] if job.seed else [])])
        lines.append(
            truncate_text(f"job {job.number}: {own}: {job.state}: {' '.join((job.error or 'no message').split())}")
        )
    return [*lines, *([f"and {len(failed) - MAX_ERRORS} more"] if len(failed) > MAX_ERRORS else [])]


def format_csv(summary: SweepSummary) -> str:
    """CSV with one line per configuration."""
    from ippo_cli.config.tables import escape_formula

    text = io.StringIO()
    writer = csv.writer(text)
    names = ("first", "best", "last")
    writer.writerow(
        ["overrides", "jobs", "states", "n"] + [f"{name}{end}" for name in names for end in INTERVAL_SUFFIXES]
    )
    for group in summary.configurations:
        means = [group.mean_score(name) for name in names]
        writer.writerow(
            [
                escape_formula(" ".join(group.overrides)),
                " ".join(str(job.number) for job in group.jobs),
                " ".join(f"{state}:{number}" for state, number in group.state_counts.items()),
                means[-1].count if means[-1] else 0,
                *(number for mean in means for number in ((mean.mean, mean.low, mean.high) if mean else [None] * 3)),
            ]
        )
    return text.getvalue()


INTERVAL_SUFFIXES = ("", "_low", "_high")

if __name__ == "__main__":
    main()
