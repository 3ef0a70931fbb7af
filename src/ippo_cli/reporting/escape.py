"""Escape model text, so that it cannot control a terminal."""

from __future__ import annotations

ELLIPSIS = "…"


def escape_text(text: str) -> str:
    """Model text with every character escaped that is not printable, newlines included."""
    spelled = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return spelled.encode("utf-8", "backslashreplace").decode()


def escape_lines(text: str) -> str:
    """Model text with control characters escaped, except newlines."""
    return "\n".join(map(escape_text, text.split("\n")))


def escape_to_width(text: str, width: int) -> str:
    """Model text, escaped and truncated to `width` characters; reads only the part that may be shown."""
    spelled = escape_text(text[: 4 * width])
    return spelled if len(spelled) <= width and len(text) <= 4 * width else spelled[: width - 1] + ELLIPSIS
