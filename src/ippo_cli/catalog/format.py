"""Tables of runs for a terminal: at most 120 columns; names, commands and errors are escaped."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from ippo_cli.catalog.compare import Comparison
from ippo_cli.catalog.entries import RunEntry
from ippo_cli.catalog.removal import Removal
from ippo_cli.config.commands import shell_command
from ippo_cli.config.secrets import redact_text
from ippo_cli.config.text import (
    escape_controls,
    format_age,
    format_bytes,
    format_table,
    join_names,
    text_width,
    truncate_text,
)
from ippo_cli.runs.folder import display_path, list_checkpoints, relative_path, resume_command
from ippo_cli.sweeps.summary import MeanInterval

WIDTH = 120
MIN_COMMAND_WIDTH = 12
MAX_AGENTS_WIDTH = 14
MAX_VALUE_WIDTH = 40
STATE_MEANINGS = {
    "preempted": ": ended by a signal or Ctrl-C, and saved",
    "interrupted": ": its process is gone without a final state; work since the newest checkpoint is lost",
}


def format_runs(entries: Sequence[RunEntry]) -> str:
    """One line per run, then the numbers of runs and bytes. Folders are relative to the one that contains all."""
    heading = ["run", "state", "score", "best", "iter", "age", "agents", "size", "command"]
    now, root = time.time(), Path(os.path.commonpath([entry.folder.parent.parent for entry in entries]))
    rows = [
        [
            escape_controls(str(entry.folder.relative_to(root))),
            f"{entry.state}, incomplete" if entry.missing else entry.state,
            f"{_format_score(entry.first)} -> {_format_score(entry.last)}",
            _format_score(entry.best),
            "-" if entry.iterations is None else str(entry.iterations),
            format_age(now - entry.started),
            truncate_text(escape_controls(join_names(entry.agents)), MAX_AGENTS_WIDTH) if entry.agents else "-",
            format_bytes(entry.size),
            shorten_command(entry.command),
        ]
        for entry in entries
    ]
    total = f"{len(entries)} run{'s' if len(entries) != 1 else ''}, {format_bytes(sum(run.size for run in entries))}"
    return "\n".join([f"below {_display(root)}", "", *_fit_table([heading, *rows]), "", total])


def _fit_table(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table with one line per row: the last column is truncated; wraps only if the others are too wide."""
    widths = [max(text_width(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    room = max(WIDTH - sum(widths) - 2 * len(widths), MIN_COMMAND_WIDTH)
    return format_table([[*row[:-1], truncate_text(row[-1], room)] for row in rows], width=WIDTH)


def shorten_command(command: str) -> str:
    """The overrides of a command, without the program, its folder and `output_dir`, on one line and escaped."""
    words = [word for word in escape_controls(redact_text(command)).split() if not word.startswith("output_dir=")]
    return " ".join(words[1:]) if words else ""


def _format_score(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def format_run(entry: RunEntry) -> str:
    """The details of one run."""
    record, known = entry.record, entry.record.state
    checkpoints = list_checkpoints(entry.folder / "checkpoints")
    rows = [
        ["run", display_path(entry.folder)],
        ["state", entry.state + (f": {entry.error}" if entry.error else STATE_MEANINGS.get(entry.state, ""))],
        ["score", f"{_format_score(entry.first)} -> {_format_score(entry.last)}, best {_format_score(entry.best)}"],
        ["metric", f"{entry.metric} on held-out data"],
        ["iterations", f"{entry.iterations} in {format_age(float(known.get('wall_seconds') or 0))}"],
        ["started", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.started))],
        ["agents", " ".join(entry.agents) or "-"],
        ["seed", str(record.config.get("seed", "-"))],
        ["size", format_bytes(entry.size)],
        ["checkpoints", " ".join(str(int(path.name.removeprefix("step_"))) for path in checkpoints) or "none"],
        *(["command" if number == 0 else "resumed by", text] for number, text in enumerate(record.commands)),
        *(["incomplete", text] for text in entry.missing),
        *(["warning", str(text)] for text in (known.get("warnings") or {}).values()),
    ]
    if checkpoints and entry.state != "running":
        more = [("num_iterations", "MORE")] if entry.state == "done" else []
        rows.append(["train further", resume_command(entry.folder, *more)])
        rows.append(["evaluate", shell_command("ippo-eval", ("run", relative_path(entry.folder)))])
    rows.append(["diagnose", shell_command("ippo-doctor", relative_path(entry.folder))])
    return "\n".join(format_table([[name, escape_controls(redact_text(text))] for name, text in rows], width=WIDTH))


def format_comparison(comparison: Comparison) -> str:
    """Groups with their scores, then differing keys, then metrics; one column per group."""
    labels = [group.label for group in comparison.groups]
    scores = [["", "n", "first", "best", "last"]] + [
        [
            group.label,
            str(len(group.entries)),
            *(_format_mean(group.mean_score(name), len(group.entries)) for name in ("first", "best", "last")),
        ]
        for group in comparison.groups
    ]
    lines = ["held-out score; with several seeds the mean and a 95% t-interval", ""]
    lines += format_table(scores, width=WIDTH)
    lines += [
        "",
        *(f"{group.label}  {_display(entry.folder)}" for group in comparison.groups for entry in group.entries),
    ]
    differences = [
        [
            key,
            *(
                truncate_text(escape_controls(redact_text(f"{key}={value}")).partition("=")[2], MAX_VALUE_WIDTH) or "''"
                for value in values
            ),
        ]
        for key, values in comparison.differences
    ]
    lines += ["", "configuration" if differences else "the configurations differ at most in seed and name"]
    if differences:
        lines += format_table([["key", *labels], *differences], width=WIDTH)
    metrics = [
        [escape_controls(row.name), *(_format_pair(*pair) for pair in zip(row.last, row.best, strict=True))]
        for row in comparison.metrics
    ]
    if metrics:
        lines += ["", "metrics: last (best)", *format_table([["metric", *labels], *metrics], width=WIDTH)]
    return "\n".join(lines)


def _format_mean(mean: MeanInterval | None, runs: int) -> str:
    """A mean and its interval, with the number of runs that have the score if it is not that of all `runs`."""
    if mean is None:
        return "-"
    count = "" if mean.count == runs else f" (n={mean.count})"
    if mean.low is None or mean.high is None:
        return f"{mean.mean:.3f}{count}"
    return f"{mean.mean:.3f} [{mean.low:.3f}, {mean.high:.3f}]{count}"


def _format_pair(last: MeanInterval | None, best: MeanInterval | None) -> str:
    if last is None:
        return "-"
    return f"{last.mean:.4g}" + (f" ({best.mean:.4g})" if best is not None else "")


def format_removals(removals: Sequence[Removal], retained: Sequence[Removal], *, confirmed: bool, command: str) -> str:
    """What was or would be removed and why, and what is retained."""
    total = format_bytes(sum(one.size for one in removals))
    verb = "removed" if confirmed else "would remove"
    lines = _format_reasons(verb, removals) + _format_reasons("keep", retained)
    if not removals:
        return "\n".join([*lines, "nothing to remove"])
    if confirmed:
        return "\n".join([*lines, f"{total} freed"])
    return "\n".join([*lines, f"{total} would be freed; nothing was removed. To remove: {command}"])


def _format_reasons(verb: str, removals: Sequence[Removal]) -> list[str]:
    if not removals:
        return []
    rows = [[verb, _display(one.folder), format_bytes(one.size), escape_controls(one.reason)] for one in removals]
    return format_table(rows, width=WIDTH)


def _display(folder: Path) -> str:
    return escape_controls(display_path(folder))
