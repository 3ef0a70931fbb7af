"""What a person sees: a live display on a terminal, one plain line per iteration elsewhere, nothing on other ranks."""

from __future__ import annotations

import io
import math
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from ippo_cli.config.schema import Console as Style
from ippo_cli.config.text import LINE_WIDTH, NAME_WIDTH, cut, fitting, shortened, text_width
from ippo_cli.engine import distributed

SPARKS = "▁▂▃▄▅▆▇█"
COLUMNS = {  # the metric's own name -> where it stands below the agent's name
    "score": "score/mean",
    "entropy": "policy/entropy",
    "approx_kl": "policy/approx_kl",
    "kl/reference": "kl/reference",
    "explained_variance": "value/explained_variance",
    "response_length": "rollout/response_length",
}
WORST = {"approx_kl": max, "kl/reference": max}  # of several agents', where that is not the lowest
PHASES = ("rollout", "score", "logprobs", "targets", "update")
FIRST_TURNS, LAST_TURNS = 5, 3  # of a conversation that a table shows
ENDINGS = {
    "environment": "cut off by the environment's limit",
    "context": "cut off: no room for what came next",
}
FRAME, PADDING = 4, 2  # columns that a panel takes around its content, and a table around each of its own
NUMBER_WIDTH, SHORT_NAME, TREND_WIDTH = 6, 8, 24
SILENCE_S = 30.0  # without a terminal, how long a phase may take before a line says how far it is
USUAL_NUMBER = -0.123  # as wide as most numbers are; a line's layout must not change with every value


class Console:
    """Everything printed by a training process. Model text is shown escaped and cut."""

    def __init__(self, style: Style, agents: Sequence[str], holder_of: Mapping[str, str] | None = None) -> None:
        """`holder_of`: by agent, the name that its weights go by; left out, its own."""
        self.agents = list(agents)
        self._holder_of = holder_of or {}
        if isinstance(sys.stdout, io.TextIOWrapper):  # a character that the locale does not have ends no training
            sys.stdout.reconfigure(errors="backslashreplace")
        self._out = RichConsole(highlight=False, soft_wrap=True)
        self._main = distributed.is_main()
        # Not `is_terminal`, which FORCE_COLOR makes true of a file; a dumb terminal cannot redraw a line.
        live = sys.stdout.isatty() and not self._out.is_dumb_terminal
        self._rich = style is Style.rich or (style is Style.auto and live)
        self._live: Live | None = None
        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=self._out
        )
        self._tasks: dict[str, Any] = {}
        self._panel: Any = Text("")
        self._history: dict[str, list[float]] = {name: [] for name in agents}
        self._shown: set[str] = set()  # the columns that some row had so far
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

    def say(self, text: str, style: str = "") -> None:
        """A line of our own words."""
        if self._main:
            self._out.print(Text(text, style=style))
            sys.stdout.flush()
            self._said_at = time.monotonic()

    def warn(self, texts: Sequence[str]) -> None:
        """What is unusual and likely wrong, one line each."""
        for text in texts:
            self.say(cut(f"warning: {text}"), style="yellow")

    def progress(self, what: str, done: int, total: int) -> None:
        """A bar for what takes longer than a moment; without a terminal a line after a long silence."""
        if not self._main:
            return
        if self._live is not None:
            if what not in self._tasks:
                self._clear_bars()
                self._tasks[what] = self._bars.add_task(cut(what, 2 * NAME_WIDTH), total=total)
            self._bars.update(self._tasks[what], completed=done, total=total)
        elif time.monotonic() - self._said_at > SILENCE_S:
            self.say(f"  {cut(what, 2 * NAME_WIDTH)}: {done}/{total}")

    def iteration(self, row: Mapping[str, float], num_iterations: int) -> None:
        """One finished iteration."""
        if not self._main:
            return
        row = dict(row) | self._of_holders(row)
        for name in self.agents:
            self._history[name].append(row[f"{name}/score/mean"])
        number = int(row["iteration"])
        self._recent.append(row["time/iteration"])
        self._shown |= {column for column in COLUMNS if any(_key(name, column) in row for name in self.agents)}
        left = sum(self._recent) / len(self._recent) * (num_iterations - number)
        if self._live is None:
            self.say(iteration_line(row, self.agents, self._columns(), num_iterations, left))
            return
        self._clear_bars()
        self._panel = self._view(row, num_iterations, left)
        self._live.update(Group(self._panel, self._bars))

    def _of_holders(self, row: Mapping[str, float]) -> dict[str, float]:
        """What was measured of weights that several agents have, under the name of each."""
        return {
            key: row[shared]
            for name, holder in self._holder_of.items()
            for column in COLUMNS
            if (key := _key(name, column)) not in row and (shared := _key(holder, column)) in row
        }

    def evaluation(self, iteration: int, metrics: Mapping[str, float], primary: str) -> None:
        """Held-out scores, the primary one first."""
        shown = [
            f"{key} {number(value)}"
            for key, value in metrics.items()
            if key != primary and key.count("/") == 1 and (value or not key.endswith("/failed_share"))
        ]
        self._clear_bars()
        line = f"evaluation after iteration {iteration}: {primary} {number(metrics[primary])}"
        rest = fitting(shown, LINE_WIDTH - len(line) - len("  ()"))
        self.say(cut(f"{line}  ({rest})" if rest else line))

    def samples(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """A table of prompts and responses: of what was said in turn where there was more than one turn."""
        if not self._main or not rows:
            return
        table = Table(
            "agent", "prompt", "response", "score", title=f"samples ({rows[0]['mode']})", title_justify="left"
        )
        for row in rows:
            if any(map(_is_conversation, rows)):
                _add_conversation(table, row)
                continue
            for name, said in row["agents"].items():
                if said["prompt"] is not None:  # who never spoke has no row
                    table.add_row(
                        shortened(name), visible(said["prompt"]), visible(said["response"]), _score(said["score"])
                    )
        self._out.print(table, width=min(self._out.width, LINE_WIDTH))
        sys.stdout.flush()

    def summary(
        self,
        folder: Path,
        evaluation: Mapping[str, Mapping[str, Any]],
        seconds: float,
        ratings: Sequence[tuple[str, float]] = (),
    ) -> None:
        """What came out, and what to do with it. `ratings`: of policies and earlier weights, the highest first."""
        shown = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        first, last = evaluation["first"], evaluation["last"]
        best = evaluation["best"]
        greedy = "greedy/exact"
        lines = [
            f"held-out score   {first['score']:.3f} -> {last['score']:.3f}   (best {best['score']:.3f} after "
            f"iteration {best['iteration']})"
        ]
        if greedy in first and greedy in last:
            lines.append(f"greedy exact     {first[greedy]:.3f} -> {last[greedy]:.3f}")
        if ratings:
            rated = [f"{name} {rating:.0f}" for name, rating in ratings]
            lines.append("Elo              " + fitting(rated, LINE_WIDTH - 17) + f"   (all: {shown}/elo.json)")
        lines += [
            f"wall time        {seconds:.0f} s",
            f"run folder       {shown}",
            *([f"curves           tensorboard --logdir {shown}/tb"] if (folder / "tb").is_dir() else []),
            f"train further    ippo-train resume={shown} num_iterations=MORE",
            f"evaluate         ippo-eval run={shown}",
        ]
        if self._main:
            self.__exit__()  # the last word is below the display
            # Paths are there to be copied: where they do not fit into a frame, there is none.
            framed = self._rich and max(map(len, lines)) + 4 <= self._out.width
            self._out.print(
                Panel(Text("\n".join(lines)), title="done", expand=False)
                if framed
                else Text("\n".join(["done", *(f"  {line}" for line in lines)]))
            )
            sys.stdout.flush()

    def _columns(self) -> list[str]:
        return [column for column in COLUMNS if column in self._shown]

    def _view(self, row: Mapping[str, float], num_iterations: int, left: float) -> Panel:
        widths, name_width, trend_width = fitted(self._columns(), self.agents, self._out.width - FRAME)
        headings = [
            Column(_heading(column), justify="right", width=width, overflow="fold") for column, width in widths.items()
        ]
        table = Table(Column("agent", width=name_width), *headings, box=None)
        if trend_width:
            table.add_column("trend", width=trend_width)
        for name in self.agents:
            cells = [number(row.get(_key(name, column))) for column in widths]
            trend = [sparkline(self._history[name], trend_width)] if trend_width else []
            table.add_row(shortened(name, name_width), *cells, *trend)
        seconds = f"{row['time/iteration']:.1f}s ({_phases(row)})"
        footer = Text(
            f"{row['perf/tokens_per_second']:.0f} tok/s   {seconds}   ETA {_clock(left)}",
            style="dim",
            no_wrap=False,
            overflow="fold",
        )
        return Panel(Group(table, footer), title=f"iteration {int(row['iteration'])} of {num_iterations}", expand=False)

    def _clear_bars(self) -> None:
        for task in self._tasks.values():
            self._bars.remove_task(task)
        self._tasks.clear()


def fitted(columns: Sequence[str], agents: Sequence[str], room: int) -> tuple[dict[str, int], int, int]:
    """Widths of a table's columns in so much room: of the numbers, of the agents' names, and of their trends.

    Numbers are never cut. The trend gives way first, then headings stand below each other, then names are shortened,
    then the last columns are left out.
    """
    name_width = max(min(max(map(text_width, agents)), NAME_WIDTH), len("agent"))
    widths = {column: max(NUMBER_WIDTH, len(_heading(column))) for column in columns}
    if _taken(widths, name_width) + PADDING + TREND_WIDTH > room:
        widths = {column: max(NUMBER_WIDTH, *map(len, _heading(column).split())) for column in columns}
    while len(widths) > 1 and _taken(widths, min(name_width, SHORT_NAME)) > room:
        widths.popitem()
    name_width = max(min(name_width, room - _taken(widths, 0)), 1)
    trend_width = min(room - _taken(widths, name_width) - PADDING, TREND_WIDTH)
    return widths, name_width, trend_width if trend_width >= len("trend") else 0


def _heading(column: str) -> str:
    return column.replace("_", " ")


def _taken(widths: Mapping[str, int], name_width: int) -> int:
    return sum(width + PADDING for width in (name_width, *widths.values()))


def iteration_line(
    row: Mapping[str, float], agents: Sequence[str], columns: Sequence[str], num_iterations: int, left: float
) -> str:
    """An iteration in one line: the first layout that has room for usual numbers, so that it stays the same."""
    usual = dict(row) | {key: USUAL_NUMBER for name in agents for column in columns if (key := _key(name, column))}
    usual |= {"perf/tokens_per_second": 12345.0, "time/iteration": 12.3}
    brief = [column for column in columns if column != "response_length"]
    layouts: list[tuple[Callable[..., list[str]], Sequence[str], tuple[str, ...]]] = [
        (_each, columns, ("agents", "rate", "phases")),
        (_each, columns, ("agents", "rate")),
        (_each, brief, ("agents", "rate")),
        (_each, brief, ("rate",)),
        (_each, brief, ()),
        (_worst, brief, ("agents", "rate")),
        (_worst, brief, ("rate",)),
        (_worst, brief, ()),
    ]
    for told, wanted, extras in layouts:
        if text_width(_joined(usual, agents, told, wanted, extras, num_iterations, 35999.0)) <= LINE_WIDTH:
            break
    return cut(_joined(row, agents, told, wanted, extras, num_iterations, left))


def _joined(
    row: Mapping[str, float],
    agents: Sequence[str],
    told: Callable[..., list[str]],
    columns: Sequence[str],
    extras: Sequence[str],
    num_iterations: int,
    left: float,
) -> str:
    parts = [f"{int(row['iteration']):>5}/{num_iterations}"]
    if "agents" in extras and len(agents) > 1:
        names = "/".join(shortened(name) for name in agents)
        parts.append(f"{names if told is _each else f'{len(agents)} agents'}:")
    parts += told(row, agents, columns)
    if "rate" in extras:
        parts.append(f"{row['perf/tokens_per_second']:.0f} tok/s")
    seconds = f"{row['time/iteration']:.1f}s"
    if "phases" in extras:
        seconds += f" ({_phases(row)})"
    return "  ".join([*parts, seconds, f"ETA {_clock(left)}"])


def _phases(row: Mapping[str, float]) -> str:
    return " ".join(f"{phase} {row[f'time/{phase}']:.1f}" for phase in PHASES if f"time/{phase}" in row)


def _key(agent: str, column: str) -> str:
    return f"{agent}/{COLUMNS[column]}"


def _each(row: Mapping[str, float], agents: Sequence[str], columns: Sequence[str]) -> list[str]:
    """`score 0.504/0.498`: every agent's number."""
    return [f"{column} " + "/".join(number(row.get(_key(name, column))) for name in agents) for column in columns]


def _worst(row: Mapping[str, float], agents: Sequence[str], columns: Sequence[str]) -> list[str]:
    """`score 0.504 min 0.101  entropy min 1.066`: the agent that is worst off, and the mean score."""
    parts = []
    for column in columns:
        found = [row.get(_key(name, column), math.nan) for name in agents]
        values = [value for value in found if not math.isnan(value)]
        worst = WORST.get(column, min)
        mean = f"{number(sum(values) / len(values))} " if values and column == "score" else ""
        parts.append(f"{column} {mean}{worst.__name__} {number(worst(values, default=None))}")
    return parts


def number(value: float | None) -> str:
    """A number in about six characters, none where there is none."""
    if value is None or math.isnan(value):
        return "-"
    if not math.isfinite(value):
        return str(value)
    size = abs(value)
    if 1e-7 <= size < 0.0005:  # less is rounding, such as the divergence of a policy from itself
        return f"{value:.0e}"
    if size >= 1e4:
        return f"{value:.1e}"
    return f"{value:.{3 if size < 10 else 2 if size < 100 else 1}f}"


def visible(text: str, width: int = 60) -> Text:
    """Model text made harmless: control characters spelled out, no markup, cut to a width."""
    spelled = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: 4 * width])
    spelled = spelled.encode("utf-8", "backslashreplace").decode()
    return Text(spelled if len(spelled) <= width and len(text) <= 4 * width else spelled[: width - 1] + "…")


def _is_conversation(row: Mapping[str, Any]) -> bool:
    """Whether there is more to show of an episode than one answer of each agent."""
    later = any(turn["step"] for turn in row.get("turns", ()))
    return later or bool(row.get("truncation") or row.get("failure") or row.get("last_observations"))


def _add_conversation(table: Table, row: Mapping[str, Any]) -> None:
    """An episode's turns in order, those in the middle left out, and how it ended for each agent."""
    turns = row["turns"]
    left_out = max(len(turns) - FIRST_TURNS - LAST_TURNS, 0)
    left_out = left_out if left_out > 1 else 0  # a line that says so takes as much room as the turn itself
    for number, turn in enumerate(turns):
        if left_out and number == FIRST_TURNS:
            table.add_row("...", f"{left_out} more turns", "", "")
        if left_out and FIRST_TURNS <= number < FIRST_TURNS + left_out:
            continue
        response = visible(turn["response"]) + Text(" (cut)" if turn["cut"] else "", style="italic")
        table.add_row(shortened(turn["agent"]), visible(turn["observation"]), response, _score(turn["score"]))
    for place, (name, part) in enumerate(row["agents"].items()):
        last = visible(row["last_observations"].get(name, ""))
        ended = Text(how_it_ended(row), style="italic") if place == 0 else ""
        table.add_row(
            shortened(name),
            last,
            ended,
            "-" if part["score"] is None else f"sum {part['score']:.2f}",
            end_section=place == len(row["agents"]) - 1,
        )


def how_it_ended(row: Mapping[str, Any]) -> str:
    """Why an episode, as plain data, is over; in words."""
    if row["failure"]:
        return f"failed: {visible(row['failure'], 2 * LINE_WIDTH).plain}"
    return "ended by itself" if row["terminated"] else ENDINGS.get(row["truncation"], "cut off")


def _score(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def sparkline(numbers: Sequence[float], width: int = TREND_WIDTH) -> str:
    """The last numbers as a row of blocks, lowest to highest; a gap where one is not finite."""
    finite = [number for number in numbers[-width:] if math.isfinite(number)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    span = (high - low) or 1.0
    blocks = {number: SPARKS[min(int((number - low) / span * len(SPARKS)), len(SPARKS) - 1)] for number in finite}
    return "".join(blocks.get(number, " ") for number in numbers[-width:])


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
