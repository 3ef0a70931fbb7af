"""Table of sample episodes: observations and responses, escaped and truncated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from ippo_cli.config.escape import escape_to_width
from ippo_cli.config.text import LINE_WIDTH, shorten_name

FIRST_TURNS, LAST_TURNS = 5, 3  # turns of a long conversation to show
ENDINGS = {
    "environment": "truncated by the environment's limit",
    "context": "truncated: no space in the context for the next observation",
}


def sample_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table of prompts and responses, by turn for episodes with several turns."""
    table = Table("agent", "prompt", "response", "score", title=f"samples ({rows[0]['mode']})", title_justify="left")
    for row in rows:
        if any(map(_is_conversation, rows)):
            _add_conversation(table, row)
            continue
        for name, part in row["agents"].items():
            if part["prompt"] is not None:  # agents without turns have no row
                table.add_row(
                    shorten_name(name),
                    escape_and_cut(part["prompt"]),
                    escape_and_cut(part["response"]),
                    _format_score(part["score"]),
                )
    return table


def escape_and_cut(text: str, width: int = 60) -> Text:
    """Model text, escaped and truncated to a width, without markup."""
    return Text(escape_to_width(text, width))


def _is_conversation(row: Mapping[str, Any]) -> bool:
    """Whether an episode has more to show than one response per agent."""
    later = any(turn["step"] for turn in row.get("turns", ()))
    return later or bool(row.get("truncation") or row.get("failure") or row.get("last_observations"))


def _add_conversation(table: Table, row: Mapping[str, Any]) -> None:
    """Add an episode's first and last turns, and its end for each agent."""
    turns = row["turns"]
    left_out = max(len(turns) - FIRST_TURNS - LAST_TURNS, 0)
    left_out = left_out if left_out > 1 else 0  # a placeholder line is as long as one turn
    for number, turn in enumerate(turns):
        if left_out and number == FIRST_TURNS:
            table.add_row("...", f"{left_out} more turns", "", "")
        if left_out and FIRST_TURNS <= number < FIRST_TURNS + left_out:
            continue
        response = escape_and_cut(turn["response"]) + Text(" (cut)" if turn["cut"] else "", style="italic")
        table.add_row(
            shorten_name(turn["agent"]), escape_and_cut(turn["observation"]), response, _format_score(turn["score"])
        )
    for place, (name, part) in enumerate(row["agents"].items()):
        last = escape_and_cut(row["last_observations"].get(name, ""))
        ended = Text(ending_message(row), style="italic") if place == 0 else ""
        table.add_row(
            shorten_name(name),
            last,
            ended,
            "-" if part["score"] is None else f"sum {part['score']:.2f}",
            end_section=place == len(row["agents"]) - 1,
        )


def ending_message(row: Mapping[str, Any]) -> str:
    """The text for the end of an episode, given as plain data."""
    if row["failure"]:
        return f"failed: {escape_and_cut(row['failure'], 2 * LINE_WIDTH).plain}"
    return "end of the episode" if row["terminated"] else ENDINGS.get(row["truncation"], "truncated")


def _format_score(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
