"""Sampled episodes as tables with one row per turn, for trackers. Model text is escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ippo_cli.config.escape import escape_lines, escape_to_width

TURN_COLUMNS = ("index", "agent", "step", "observation", "response", "score", "cut")
TEXT_COLUMNS = ("observation", "response")
MAX_MARKDOWN_TURNS, MAX_CELL = 64, 400  # turns of a Markdown table, and characters of a cell
MARKUP = re.compile(r"[^a-zA-Z0-9\s]")  # characters that may have a meaning in Markdown or HTML


def without_tokens(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The episodes without the tokens of their turns, for trackers that send them to a server.

    Secrets in texts are replaced before they are sent; a secret that is split into tokens could not be.
    """
    return [
        {**row, "turns": [{key: value for key, value in turn.items() if key != "tokens"} for turn in row["turns"]]}
        for row in rows
    ]


def turn_table(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The turns of all episodes in the order of `TURN_COLUMNS`, with control characters escaped."""
    turns = [{"index": row["index"], **turn} for row in rows for turn in row["turns"]]
    return [
        [escape_lines(turn[column]) if column in TEXT_COLUMNS else turn[column] for column in TURN_COLUMNS]
        for turn in turns
    ]


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The first turns of the episodes as a Markdown table; texts are truncated."""
    turns = [{"index": row["index"], **turn} for row in rows for turn in row["turns"]]
    lines = [TURN_COLUMNS, ["---"] * len(TURN_COLUMNS)]
    lines += [[escape_markdown(str(turn[column])) for column in TURN_COLUMNS] for turn in turns[:MAX_MARKDOWN_TURNS]]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    left_out = len(turns) - MAX_MARKDOWN_TURNS
    return text if left_out <= 0 else f"{text}\n\n{left_out} more turns in `samples/` of the run's folder"


def escape_markdown(text: str) -> str:
    """A text truncated to `MAX_CELL` characters, none of which has a meaning in Markdown or HTML."""
    return MARKUP.sub(lambda match: f"&#{ord(match[0])};", escape_to_width(text, MAX_CELL))
