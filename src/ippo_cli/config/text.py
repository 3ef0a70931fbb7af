"""Text for one line of a log: how wide it is, cut to a width, names listed shortly, and the nearest one."""

from __future__ import annotations

import difflib
import re
import textwrap
import unicodedata
from collections.abc import Iterable, Sequence

LINE_WIDTH = 160  # columns of the longest line of a log: an iteration has one
PAGE_WIDTH = 100  # columns of what a command prints to be read as a page: help, plans, tables, errors
COLUMN_WIDTH = 12  # to which a table's column is narrowed at most
NAME_WIDTH = 24


def text_width(text: str) -> int:
    """Columns that a text takes on a terminal: wide characters take two, combining ones none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.category(c) in ("Mn", "Me") for c in text)


def truncate_text(text: str, width: int = LINE_WIDTH) -> str:
    """The text, ended with an ellipsis where it is wider than `width` columns."""
    if text_width(text) <= width:
        return text
    while text and text_width(text) >= width:
        text = text[: -max(1, (text_width(text) - width) // 2)]
    return text + "…"


def shorten_name(name: str, width: int = NAME_WIDTH) -> str:
    """A name of at most `width` columns; its end, which often tells it from others, stays."""
    if text_width(name) <= width:
        return name
    end = name[-(width // 3) :] if width >= 3 else ""
    return truncate_text(name, width - text_width(end)) + end


def join_names(names: Sequence[str], most: int = 3) -> str:
    """Names in a sentence: `low and high`, `a, b and c`, `a, b, c and 17 more`."""
    parts = [shorten_name(name) for name in names[:most]]
    if len(names) > most:
        parts.append(f"{len(names) - most} more")
    return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def join_fitting(parts: Sequence[str], width: int) -> str:
    """As many parts as fit, separated by commas, and how many more there are."""
    for count in range(len(parts), 0, -1):
        left = [f"and {len(parts) - count} more"] if count < len(parts) else []
        if text_width(text := ", ".join([*parts[:count], *left])) <= width:
            return text
    return f"{len(parts)} more" if parts else ""


def format_table(rows: Sequence[Sequence[str]], *, width: int = PAGE_WIDTH, numbers: bool = False) -> list[str]:
    """Lines of a table whose first row is its heading; cells of the widest columns are wrapped where it is too wide.

    `numbers`: all columns but the first are aligned at their right.
    """
    widths = [max(text_width(row[column]) for row in rows) for column in range(len(rows[0]))]
    words = [
        max(text_width(word) for row in rows for word in (row[column].split() or [""])) for column in range(len(widths))
    ]
    for floors in (words, [0] * len(widths)):  # words are broken only where nothing else makes the table fit
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
    """Lower the greatest widths until their sum fits, none below its floor."""
    while sum(widths) > width:
        wide = [column for column, size in enumerate(widths) if size > floors[column]]
        if not wide:
            return
        widths[max(wide, key=lambda column: widths[column])] -= 1


def format_columns(names: Iterable[str]) -> str:
    """Names of a table's columns or an example's fields, those in quotes of which one would not see where they end."""
    return " ".join(name if re.fullmatch(r"[\w.-]+", name) else repr(name) for name in map(str, names))


def closest_hint(name: str, known: Sequence[str]) -> str:
    """The known name that a mistyped one is nearest to, in brackets; nothing where none is near."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (closest: {close[0]})" if close else ""
