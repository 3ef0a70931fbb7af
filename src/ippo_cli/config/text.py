"""Text for one line of a log: how wide it is, cut to a width, names listed shortly, and the nearest one."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Sequence

LINE_WIDTH = 160  # columns of the longest line that is printed
NAME_WIDTH = 24


def text_width(text: str) -> int:
    """Columns that a text takes on a terminal: wide characters take two, combining ones none."""
    wide = sum(unicodedata.east_asian_width(c) in "WF" for c in text)
    return len(text) + wide - sum(unicodedata.category(c) in ("Mn", "Me") for c in text)


def cut(text: str, width: int = LINE_WIDTH) -> str:
    """The text, ended with an ellipsis where it is wider than `width` columns."""
    if text_width(text) <= width:
        return text
    while text and text_width(text) >= width:
        text = text[: -max(1, (text_width(text) - width) // 2)]
    return text + "…"


def shortened(name: str, width: int = NAME_WIDTH) -> str:
    """A name of at most `width` columns; its end, which often tells it from others, stays."""
    if text_width(name) <= width:
        return name
    end = name[-(width // 3) :] if width >= 3 else ""
    return cut(name, width - text_width(end)) + end


def listed(names: Sequence[str], most: int = 3) -> str:
    """Names in a sentence: `low and high`, `a, b and c`, `a, b, c and 17 more`."""
    shown = [shortened(name) for name in names[:most]]
    if len(names) > most:
        shown.append(f"{len(names) - most} more")
    return " and ".join(part for part in (", ".join(shown[:-1]), shown[-1]) if part)


def fitting(parts: Sequence[str], width: int) -> str:
    """As many parts as fit, separated by commas, and how many more there are."""
    for count in range(len(parts), 0, -1):
        left = [f"and {len(parts) - count} more"] if count < len(parts) else []
        if text_width(text := ", ".join([*parts[:count], *left])) <= width:
            return text
    return f"{len(parts)} more" if parts else ""


def columns(names: Iterable[str]) -> str:
    """Names of a table's columns or an example's fields, those in quotes of which one would not see where they end."""
    return " ".join(name if re.fullmatch(r"[\w.-]+", name) else repr(name) for name in map(str, names))


def closest(name: str, known: Sequence[str]) -> str:
    """The known name that a mistyped one is nearest to, in brackets; nothing where none is near."""
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (closest: {close[0]})" if close else ""
