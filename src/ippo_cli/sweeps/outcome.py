"""The final message and exit code of a sweep: invalid jobs, failed jobs, or an interruption."""

from __future__ import annotations

import signal
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from ippo_cli.compose.exits import MAX_LINES, WIDTH
from ippo_cli.config.commands import shell_command
from ippo_cli.config.errors import UNEXPECTED, ConfigError, IppoError, Preempted
from ippo_cli.runs.folder import relative_path, resume_command
from ippo_cli.runs.output import print_text
from ippo_cli.sweeps import folder as sweep_folder
from ippo_cli.sweeps.folder import FINISHED_STATES, STOP_FILE, JobRow, read_rows
from ippo_cli.sweeps.state import read_queue


class SweepRefused(IppoError):
    """Some jobs are invalid, and no job was started."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class SweepFailed(IppoError):
    """Some jobs failed; the exit code is that of the first failed job."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def refused_jobs_error(rows: Sequence[JobRow], refused: Mapping[int, IppoError]) -> SweepRefused:
    """One error for all invalid jobs; jobs with the same message share a line."""
    own = sweep_folder.distinct_overrides(rows)
    jobs: dict[str, list[JobRow]] = {}
    for row in rows:
        if row.job in refused:
            jobs.setdefault(" ".join(str(refused[row.job]).split()), []).append(row)
    lines = []
    for message, group in jobs.items():
        if len(group) == len(rows) > 1:
            lines.append(f"all {len(rows)} jobs: {message}")
        elif len(group) == 1:
            lines.append(f"job {group[0].job} of {len(rows)}: {own[group[0].job]}: {message}")
        else:
            numbers = " ".join(str(row.job) for row in group)
            common = [text for text in group[0].overrides if all(text in row.overrides for row in group)]
            common = [text for text in common if not all(text in row.overrides for row in rows)]
            lines.append(
                ": ".join([f"jobs {numbers} of {len(rows)}", *([" ".join(common)] if common else []), message])
            )
    codes = {error.exit_code for error in refused.values()}
    code = codes.pop() if len(codes) == 1 else ConfigError.exit_code
    return SweepRefused("\n".join([*_fit_lines(lines), "no job was started"]), code)


def report_and_exit(folder: Path, error: str | None) -> None:
    """Print the table. Raises `SweepFailed`, `Preempted` or `KeyboardInterrupt` if the sweep is incomplete."""
    rows = close_rows(folder, error)
    print_text(f"\n{sweep_folder.sweep_table(folder, rows)}")
    print_text(f"\nmeans over seeds  {shell_command('ippo-sweep', relative_path(folder))}")
    print_text(f"one page          {shell_command('ippo-report', relative_path(folder))}")
    check_outcome(folder, rows, error, f"resume with: {resume_command(folder, sweep=True)}")


def close_rows(folder: Path, error: str | None) -> list[JobRow]:
    """The rows of a sweep that ended; those without a process become failed. `error`: of the launcher."""
    queue = read_queue(folder, read_rows(folder))
    for row in read_rows(folder):
        # The launcher exits with the first killed job; other jobs may still be in the queue.
        if row.state == "running" and (row.slurm is None or queue.state_for_row(row) == "missing"):
            with sweep_folder.update_row(folder, row.job) as saved_row:
                sweep_folder.set_state(saved_row, "failed", UNEXPECTED, error or "its process ended without a message")
                sweep_folder.copy_run_result(saved_row, folder / row.folder)
    return read_rows(folder)


def check_outcome(folder: Path, rows: Sequence[JobRow], error: str | None, go_on: str) -> None:
    """Raise `SweepFailed`, `Preempted` or `KeyboardInterrupt` if jobs are missing; `go_on`: how to resume."""
    done = sum(row.state in FINISHED_STATES for row in rows)
    if (folder / STOP_FILE).exists():
        number = int((folder / STOP_FILE).read_text())
        (folder / STOP_FILE).unlink()
        words = f"the sweep was stopped: {done} of {len(rows)} jobs are done\n{go_on}"
        raise KeyboardInterrupt(words) if number == signal.SIGINT else Preempted(words)
    failed = [row for row in rows if row.state not in FINISHED_STATES]
    if failed or error is not None:
        own = sweep_folder.distinct_overrides(rows)
        messages = [
            f"job {row.job} of {len(rows)}: {own[row.job]}: {row.state}"
            f"{': ' + ' '.join(row.error.split()) if row.error else ''}"
            for row in failed
        ]
        head = f"{done} of {len(rows)} jobs are done" + (f"; the launcher ended with {error}" if error else "")
        codes = [row.exit_code for row in failed if row.exit_code]
        raise SweepFailed(
            "\n".join([head, *_fit_lines(messages)[: MAX_LINES - 2], go_on]), codes[0] if codes else UNEXPECTED
        )


def _fit_lines(lines: list[str]) -> list[str]:
    """All lines if they fit into an error block, else truncated lines and the number of omitted lines."""
    room = MAX_LINES - 1
    width = WIDTH - 2 - len("ippo: ")  # a block wraps at `WIDTH - 2`
    if sum(len(textwrap.wrap(line, width)) for line in lines) <= room:
        return lines
    visible = lines if len(lines) <= room else lines[: room - 1]
    more = [f"and {len(lines) - len(visible)} more"] if len(visible) < len(lines) else []
    return [*(line if len(line) <= width else f"{line[: width - 4]} ..." for line in visible), *more]
