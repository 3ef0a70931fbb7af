"""Escape text of models, names and files, so that it cannot control a terminal."""

from __future__ import annotations

import unicodedata

ELLIPSIS = "…"


def escape_text(text: str) -> str:
    """Text with every character escaped that is not printable, newlines included; spaces of any width are printable."""
    spelled = "".join(c if _is_printable(c) else c.encode("unicode_escape").decode() for c in text)
    return spelled.encode("utf-8", "backslashreplace").decode()


def _is_printable(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


def escape_lines(text: str) -> str:
    """Text with control characters escaped, except newlines and tabs."""
    return "\n".join("\t".join(map(escape_text, line.split("\t"))) for line in text.split("\n"))


def escape_to_width(text: str, width: int) -> str:
    """Model text, escaped and truncated to `width` characters; reads only the part that may be shown."""
    spelled = escape_text(text[: 4 * width])
    return spelled if len(spelled) <= width and len(text) <= 4 * width else spelled[: width - 1] + ELLIPSIS
