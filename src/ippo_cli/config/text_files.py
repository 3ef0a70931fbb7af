"""Encoding checks of user text files: position of the first byte that is not UTF-8."""

from __future__ import annotations

from pathlib import Path

ENCODING_REMEDY = "save it as UTF-8, for example with iconv -f latin1 -t utf-8 (-f utf-16 after a byte 0xff or 0xfe)"


def locate_undecodable_byte(data: bytes, error: UnicodeDecodeError, first_line: int = 1) -> str:
    """Format the position: `byte 0xe9 at character 7 of line 3 is not UTF-8`."""
    before = data[: error.start]
    line_start = before.rfind(b"\n") + 1
    line = first_line + before.count(b"\n")
    column = len(before[line_start:].decode("utf-8", errors="replace")) + 1
    return f"byte 0x{data[error.start]:02x} at character {column} of line {line} is not UTF-8"


def find_undecodable_byte(path: Path) -> str | None:
    """Position of the first byte that is not UTF-8; None if there is none or the file cannot be read."""
    try:
        data = path.read_bytes()
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        return locate_undecodable_byte(data, error)
    except OSError:
        return None
    return None
