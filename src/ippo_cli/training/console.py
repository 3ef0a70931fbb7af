"""What a person sees: a live display on a terminal, one plain line per iteration elsewhere, nothing on other ranks."""

from __future__ import annotations

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
from rich.table import Table
from rich.text import Text

from ippo_cli.config.schema import Console as Style
from ippo_cli.engine import distributed

SPARKS = "▁▂▃▄▅▆▇█"
COLUMNS = {  # heading -> metric below the agent's name
    "score": "score/mean",
    "entropy": "policy/entropy",
    "KL": "policy/approx_kl",
    "expl. var": "value/explained_variance",
    "length": "rollout/response_length",
}


class Console:
    """Everything printed by a training process. Model text is shown escaped and cut."""

    def __init__(self, style: Style, agents: Sequence[str]) -> None:
        self.agents = list(agents)
        self._out = RichConsole(highlight=False, soft_wrap=True)
        self._main = distributed.is_main()
        self._rich = style is Style.rich or (style is Style.auto and self._out.is_terminal)
        self._live: Live | None = None
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=self._out
        )
        self._tasks: dict[str, Any] = {}
        self._panel: Any = Text("")
        self._history: dict[str, list[float]] = {name: [] for name in agents}
        self._recent: deque[float] = deque(maxlen=20)  # seconds of the last iterations
        self._said_at = time.monotonic()

    def __enter__(self) -> Console:
        if self._main and self._rich:
            self._live = Live(Group(self._bars), console=self._out, refresh_per_second=4, transient=False)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._clear_bars()
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """A line of our own words."""
        if self._main:
            self._out.print(Text(text))
            sys.stdout.flush()

    def progress(self, what: str, done: int, total: int) -> None:
        """A bar for what takes longer than a moment; on a plain console a line every few seconds."""
        if not self._main:
            return
        if self._live is not None:
            if what not in self._tasks:
                self._clear_bars()
                self._tasks[what] = self._bars.add_task(what, total=total)
            self._bars.update(self._tasks[what], completed=done, total=total)
        elif time.monotonic() - self._said_at > 5.0:
            self._said_at = time.monotonic()
            self.say(f"  {what}: {done}/{total}")

    def iteration(self, row: Mapping[str, float], num_iterations: int) -> None:
        """One finished iteration."""
        if not self._main:
            return
        for name in self.agents:
            self._history[name].append(row[f"{name}/score/mean"])
        number = int(row["iteration"])
        self._recent.append(row["time/iteration"])
        left = sum(self._recent) / len(self._recent) * (num_iterations - number)
        self._said_at = time.monotonic()
        if self._live is None:
            self.say(self._line(row, num_iterations, left))
            return
        self._clear_bars()
        self._panel = self._view(row, num_iterations, left)
        self._live.update(Group(self._panel, self._bars))

    def evaluation(self, iteration: int, metrics: Mapping[str, float], headline: str) -> None:
        """Held-out scores, in the order of the metrics."""
        shown = [f"{key} {value:.3f}" for key, value in metrics.items() if key.count("/") == 1 and "failed" not in key]
        self._clear_bars()
        self.say(f"evaluation after iteration {iteration}: {headline} {metrics[headline]:.3f}  ({', '.join(shown)})")

    def samples(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """A table of prompts and responses."""
        if not self._main or not rows:
            return
        table = Table(
            "agent", "prompt", "response", "score", title=f"samples ({rows[0]['mode']})", title_justify="left"
        )
        for row in rows:
            for name, said in row["agents"].items():
                table.add_row(name, visible(said["prompt"]), visible(said["response"]), f"{said['score']:.2f}")
        self._out.print(table)
        sys.stdout.flush()

    def summary(self, folder: Path, evaluation: Mapping[str, Mapping[str, Any]], seconds: float) -> None:
        """What came out, and what to do with it."""
        shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        first, last = evaluation["first"], evaluation["last"]
        best = evaluation["best"]
        greedy = "greedy/exact"
        lines = [f"held-out score   {first['score']:.3f} -> {last['score']:.3f}   (best {best['score']:.3f} after "
                 f"iteration {best['iteration']})"]  # fmt: skip
        if greedy in first and greedy in last:
            lines.append(f"greedy exact     {first[greedy]:.3f} -> {last[greedy]:.3f}")
        lines += [
            f"wall time        {seconds:.0f} s",
            f"run folder       {shown}",
            f"curves           tensorboard --logdir {shown}/tb",
            f"train further    ippo-train resume={shown} num_iterations=MORE",
            f"evaluate         ippo-eval run={shown}",
        ]
        if self._main:
            self._out.print(Panel(Text("\n".join(lines)), title="done", expand=False) if self._rich
                            else Text("\n".join(["done", *(f"  {line}" for line in lines)])))  # fmt: skip
            sys.stdout.flush()

    def _line(self, row: Mapping[str, float], num_iterations: int, left: float) -> str:
        agents = "  ".join(
            f"{name}: " + " ".join(f"{heading} {row[f'{name}/{key}']:.3f}" for heading, key in COLUMNS.items()
                                   if f"{name}/{key}" in row)
            for name in self.agents
        )  # fmt: skip
        return (
            f"{int(row['iteration']):>5}/{num_iterations}  {agents}  {row['perf/tokens_per_second']:.0f} tok/s  "
            f"{_times(row)}  ETA {_clock(left)}"
        )

    def _view(self, row: Mapping[str, float], num_iterations: int, left: float) -> Panel:
        table = Table("agent", *COLUMNS, "trend", box=None)
        for name in self.agents:
            cells = [f"{row[f'{name}/{key}']:.3f}" if f"{name}/{key}" in row else "-" for key in COLUMNS.values()]
            table.add_row(name, *cells, sparkline(self._history[name]))
        footer = Text(f"{row['perf/tokens_per_second']:.0f} tok/s   {_times(row)}   ETA {_clock(left)}", style="dim")
        return Panel(Group(table, footer), title=f"iteration {int(row['iteration'])} of {num_iterations}", expand=False)

    def _clear_bars(self) -> None:
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._tasks.clear()


def visible(text: str, width: int = 60) -> Text:
    """Model text made harmless: control characters spelled out, no markup, cut to a width."""
    spelled = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: 4 * width])
    spelled = spelled.encode("utf-8", "backslashreplace").decode()
    return Text(spelled if len(spelled) <= width and len(text) <= 4 * width else spelled[: width - 1] + "…")


def sparkline(numbers: Sequence[float], width: int = 24) -> str:
    """The last numbers as a row of blocks, lowest to highest; a gap where one is not finite."""
    finite = [number for number in numbers[-width:] if math.isfinite(number)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = (high - low) or 1.0
    blocks = {number: SPARKS[min(int((number - low) / span * len(SPARKS)), len(SPARKS) - 1)] for number in finite}
    return "".join(blocks.get(number, " ") for number in numbers[-width:])


def _times(row: Mapping[str, float]) -> str:
    phases = ("rollout", "score", "targets", "update")
    return f"{row['time/iteration']:.1f}s (" + " ".join(f"{name} {row[f'time/{name}']:.1f}" for name in phases) + ")"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
