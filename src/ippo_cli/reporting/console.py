"""Console output on rank 0: a live display on a terminal, else one plain line per iteration."""

from __future__ import annotations

import io
import math
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from ippo_cli.config.commands import activation_command, shell_command
from ippo_cli.config.escape import escape_lines
from ippo_cli.config.schema import Console as Style
from ippo_cli.config.text import COLUMN_WIDTH, LINE_WIDTH, NAME_WIDTH, join_fitting, truncate_text
from ippo_cli.engine import distributed
from ippo_cli.reporting.console_format import (
    COLUMNS,
    agent_metric,
    format_number,
    has_information,
    iteration_line,
)
from ippo_cli.reporting.console_panel import PhaseLine, iteration_panel
from ippo_cli.reporting.sample_table import sample_table
from ippo_cli.runs.folder import display_path, resume_command

BAR_WIDTH = 45  # columns of a progress bar beside its label
PROGRESS_INTERVAL_S = 30.0  # minimum time without output before a progress line, without a terminal


class Console:
    """Prints the output of a training process. Model text is escaped and truncated."""

    def __init__(self, style: Style, agents: Sequence[str], policy_of_agent: Mapping[str, str] | None = None) -> None:
        """`policy_of_agent`: by agent, the name of its policy; default: the agent's name."""
        self.agents = list(agents)
        self._policy_of_agent = policy_of_agent or {}
        if isinstance(sys.stdout, io.TextIOWrapper):  # characters outside the locale's encoding must not raise
            sys.stdout.reconfigure(errors="backslashreplace")
        self._out = RichConsole(highlight=False, soft_wrap=True)
        self._is_main = distributed.is_main()
        # Not `is_terminal`, which FORCE_COLOR makes true of a file; a dumb terminal cannot redraw a line.
        live = sys.stdout.isatty() and not self._out.is_dumb_terminal
        self._is_rich = style is Style.rich or (style is Style.auto and live)
        self._live: Live | None = None
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._out,
        )
        self._tasks: dict[str, Any] = {}
        self._panel: Panel | None = None
        self._phase = PhaseLine()
        self._history: dict[str, list[float]] = {name: [] for name in agents}
        self._seen_columns: set[str] = set()  # the columns with a value in any row so far
        self._recent_seconds: deque[float] = deque(maxlen=20)  # durations of the last iterations
        self._last_line_at = time.monotonic()

    def __enter__(self) -> Console:
        if self._is_main and self._is_rich:
            self._live = Live(Group(self._bars), console=self._out, refresh_per_second=4, transient=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self.show_phase("")
            self._live.stop()
            self._live = None

    def print_line(self, text: str, style: str = "") -> None:
        """Print a line; the text is not parsed as markup."""
        if self._is_main:
            self._out.print(Text(escape_lines(text), style=style))
            sys.stdout.flush()
            self._last_line_at = time.monotonic()

    def print_warnings(self, texts: Sequence[str]) -> None:
        """Print warnings, one line each."""
        for text in texts:
            self.print_line(truncate_text(f"warning: {text}"), style="yellow")

    def show_phase(self, phase: str) -> None:
        """Show what the run does at present, on a live display only. An empty name ends the phase."""
        if self._live is not None:
            self._clear_bars()
            self._phase.begin(phase)
            self._redraw()

    def show_progress(self, label: str, done: int, total: int) -> None:
        """Show a progress bar; without a terminal, a line if nothing was printed for `PROGRESS_INTERVAL_S`."""
        if not self._is_main:
            return
        if self._live is not None:
            if label not in self._tasks:
                self._clear_bars()
                room = min(max(self._out.width - BAR_WIDTH, COLUMN_WIDTH), 2 * NAME_WIDTH)
                self._tasks[label] = self._bars.add_task(truncate_text(label, room), total=total)
            self._bars.update(self._tasks[label], completed=done, total=total)
        elif time.monotonic() - self._last_line_at > PROGRESS_INTERVAL_S:
            self.print_line(f"  {truncate_text(label, 2 * NAME_WIDTH)}: {done}/{total}")

    def show_iteration(self, row: Mapping[str, float], num_iterations: int) -> None:
        """Show one finished iteration."""
        if not self._is_main:
            return
        row = dict(row) | self._shared_policy_metrics(row)
        for name in self.agents:
            self._history[name].append(row[f"{name}/score/mean"])
        number = int(row["iteration"])
        self._recent_seconds.append(row["time/iteration"])
        self._seen_columns |= {
            column for column in COLUMNS if any(has_information(row, name, column) for name in self.agents)
        }
        left = sum(self._recent_seconds) / len(self._recent_seconds) * (num_iterations - number)
        if self._live is None:
            self.print_line(iteration_line(row, self.agents, self._columns(), num_iterations, left))
            return
        self._clear_bars()
        size = (self._out.width, self._out.height)
        self._panel = iteration_panel(row, self.agents, self._columns(), self._history, num_iterations, left, size)
        self._redraw()

    def _redraw(self) -> None:
        assert self._live is not None
        phase = self._phase if self._phase.phase else None
        self._live.update(Group(*(part for part in (self._panel, phase, self._bars) if part is not None)))

    def _shared_policy_metrics(self, row: Mapping[str, float]) -> dict[str, float]:
        """Metrics of shared policies, under the name of each agent."""
        return {
            key: row[shared]
            for name, holder in self._policy_of_agent.items()
            for column in COLUMNS
            if (key := agent_metric(name, column)) not in row and (shared := agent_metric(holder, column)) in row
        }

    def show_evaluation(self, iteration: int, metrics: Mapping[str, float], primary: str) -> None:
        """Show held-out scores, the primary metric first."""
        failed = [key for key, value in metrics.items() if key.endswith("/failed_fraction") and value]
        others = [key for key in metrics if key.count("/") == 1 and not key.endswith("/failed_fraction")]
        # Failures first: scores are means over the other rows only.
        shown = [f"{key} {format_number(metrics[key])}" for key in (*failed, *others) if key != primary]
        self._clear_bars()
        line = f"evaluation after iteration {iteration}: {primary} {format_number(metrics[primary])}"
        rest = join_fitting(shown, LINE_WIDTH - len(line) - len("  ()"))
        self.print_line(truncate_text(f"{line}  ({rest})" if rest else line))

    def show_samples(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Show a table of prompts and responses, by turn for episodes with several turns."""
        if not self._is_main or not rows:
            return
        self._out.print(sample_table(rows), width=min(self._out.width, LINE_WIDTH))
        sys.stdout.flush()

    def show_summary(
        self,
        folder: Path,
        evaluation: Mapping[str, Mapping[str, Any]],
        seconds: float,
        ratings: Sequence[tuple[str, float]] = (),
        more: tuple[str, str] = ("num_iterations", "MORE"),
        *,
        fits_critics: bool = False,
    ) -> None:
        """Show the results of a run and commands to continue.

        `ratings`: Elo of policies and snapshots, highest first; `more`: the override that lets the run train further.
        `fits_critics`: the score is that of critics, from which other runs can start.
        """
        shown = display_path(folder)
        curves = shell_command("tensorboard", "--logdir", f"{shown}/tb")
        first, last = evaluation["first"], evaluation["last"]
        best, best_text = evaluation.get("best"), "no best score"
        if best is not None and not math.isnan(best["score"]):
            best_text = f"best {best['score']:.3f} after iteration {best['iteration']}"
        greedy = "greedy/exact"
        title = "explained var." if fits_critics else "held-out score"
        lines = [f"{title:<16} {first['score']:.3f} -> {last['score']:.3f}   ({best_text})"]
        if greedy in first and greedy in last:
            lines.append(f"greedy exact     {first[greedy]:.3f} -> {last[greedy]:.3f}")
        if ratings:
            rated = [f"{name} {rating:.0f}" for name, rating in ratings]
            lines.append("Elo              " + join_fitting(rated, LINE_WIDTH - 17) + f"   (all: {shown}/elo.json)")
        lines += [
            f"wall time        {seconds:.0f} s",
            f"run folder       {shown}",
            *([f"report           {shown}/report.html"] if (folder / "report.html").is_file() else []),
            *([f"curves           {curves}"] if (folder / "tb").is_dir() else []),
            f"train further    {resume_command(folder, more)}",
            f"use the critic   {shell_command('ippo-train', ('critic.warm_start', shown))}"
            if fits_critics
            else f"evaluate         {shell_command('ippo-eval', ('run', shown))}",
            *([f"activate first   {activation}"] if (activation := activation_command()) else []),
        ]
        if self._is_main:
            self.__exit__()  # print below the display
            # No frame if lines do not fit, so that paths can be copied.
            framed = self._is_rich and max(map(len, lines)) + 4 <= self._out.width
            self._out.print(
                Panel(Text("\n".join(lines)), title="done", expand=False)
                if framed
                else Text("\n".join(["done", *(f"  {line}" for line in lines)]))
            )
            sys.stdout.flush()

    def _columns(self) -> list[str]:
        return [column for column in COLUMNS if column in self._seen_columns]

    def _clear_bars(self) -> None:
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._tasks.clear()


def series_by_metric(metrics: Mapping[str, float]) -> dict[str, list[float]]:
    """Metrics by name, with the turns of a metric in one list, up to the last turn with a value."""
    lines: dict[str, list[float]] = {}
    for key, value in metrics.items():
        name, _, turn = key.rpartition("/turn/")
        lines.setdefault(f"{name}/turn" if name else turn, []).append(value)
    for line in lines.values():
        while len(line) > 1 and math.isnan(line[-1]):
            line.pop()
    return lines
