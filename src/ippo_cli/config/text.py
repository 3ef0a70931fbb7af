"""Text formatting for logs and terminals: width, truncation, lists of names, tables, closest names."""

from __future__ import annotations

import difflib
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence

from ippo_cli.config.escape import escape_text

LINE_WIDTH = 160  # maximum columns of a log line
PAGE_WIDTH = 100  # maximum columns of help, plans, tables and errors
COLUMN_WIDTH = 12  # minimum columns of a narrowed table column
NAME_WIDTH = 24


def text_width(text: str) -> int:
    """Columns of a text on a terminal: wide characters count 2, combining characters 0."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.category(c) in ("Mn", "Me") for c in text)


def truncate_text(text: str, width: int = LINE_WIDTH) -> str:
    """Truncate a text to `width` columns, with an ellipsis at the end."""
    if text_width(text) <= width:
        return text
    while text and text_width(text) >= width:
        text = text[: -max(1, (text_width(text) - width) // 2)]
    return text + "…"


def shorten_name(name: str, width: int = NAME_WIDTH) -> str:
    """Shorten a name to `width` columns; keeps its end, which often distinguishes it."""
    if text_width(name) <= width:
        return name
    end = name[-(width // 3) :] if width >= 3 else ""
    return truncate_text(name, width - text_width(end)) + end


def join_names(names: Sequence[str], most: int = 3) -> str:
    """Join names for a sentence: `low and high`, `a, b and c`, `a, b, c and 17 more`."""
    parts = [shorten_name(name) for name in names[:most]]
    if len(names) > most:
        parts.append(f"{len(names) - most} more")
    return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def join_fitting(parts: Sequence[str], width: int) -> str:
    """Join as many parts as fit with commas, and count the others."""
    for count in range(len(parts), 0, -1):
        left = [f"and {len(parts) - count} more"] if count < len(parts) else []
        if text_width(text := ", ".join([*parts[:count], *left])) <= width:
            return text
    return f"{len(parts)} more" if parts else ""


def format_table(rows: Sequence[Sequence[str]], *, width: int = PAGE_WIDTH, numbers: bool = False) -> list[str]:
    """Format a table as lines; the first row is the heading. Wraps cells of the widest columns if it is too wide.

    `numbers`: right-align all columns except the first.
    """
    widths = [max(text_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    words = [
        max(text_width(word) for row in rows for word in (row[column].split() or [""])) for column in range(len(widths))
    ]
    for floors in (words, [0] * len(widths)):  # break words only if the table does not fit otherwise
        _shrink_columns(widths, [max(floor, COLUMN_WIDTH) for floor in floors], width - 2 * (len(widths) - 1))
    lines = []
    for row in rows:
        cells = [
            textwrap.wrap(cell, size, break_on_hyphens=False) or [""] for cell, size in zip(row, widths, strict=True)
        ]
        for part in range(max(map(len, cells))):
            line_cells = [cell[part] if part < len(cell) else "" for cell in cells]
            padded = [
                text.rjust(size) if numbers and column else text.ljust(size)
                for column, (text, size) in enumerate(zip(line_cells, widths, strict=True))
            ]
            lines.append("  ".join(padded).rstrip())
    return lines


def _shrink_columns(widths: list[int], floors: Sequence[int], width: int) -> None:
    """Reduce the largest widths in place until their sum fits, none below its floor."""
    while sum(widths) > width:
        wide = [column for column, size in enumerate(widths) if size > floors[column]]
        if not wide:
            return
        widths[max(wide, key=lambda column: widths[column])] -= 1


def format_columns(names: Iterable[str]) -> str:
    """Join names of columns or fields; quotes names with special characters."""
    return " ".join(name if re.fullmatch(r"[\w.-]+", name) else repr(name) for name in map(str, names))


def closest_hint(name: str, known: Sequence[str]) -> str:
    """Format the closest known name as ` (closest: NAME)`; empty if none is close."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (closest: {close[0]})" if close else ""


def escape_controls(text: str) -> str:
    """One printable line: white space becomes single spaces, other control characters their escapes."""
    return escape_text(" ".join(text.split()))


def format_count(number: int, singular: str) -> str:
    """A number and a noun: `1 run`, `2 runs`."""
    return f"{number} {singular}{'' if number == 1 else 's'}"


def format_bytes(count: float) -> str:
    """A size in the largest unit with a value of at least 1: `312 B`, `4.1 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_age(seconds: float) -> str:
    """A duration in the largest unit with a value of at least 1: `40 s`, `5 h`, `12 d`."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
