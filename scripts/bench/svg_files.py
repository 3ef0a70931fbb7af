"""Write figures as small SVG files: coordinates have one decimal, a tenth of a point."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

COORDINATES = re.compile(
    r'(?<=\s)(?P<name>d|x|y|x1|y1|x2|y2|cx|cy|r|width|height|points|viewBox|transform)="(?P<value>[^"]*)"'
)
NUMBER = re.compile(r"-?\d+\.\d+(?:e[-+]?\d+)?")


def write_svg(figure: Any, file: Path) -> Path:
    """Write a figure without its date, so that the same figure gives the same file."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    file.write_text(round_coordinates(buffer.getvalue()))
    return file


def round_coordinates(svg: str) -> str:
    """Round paths, positions and sizes to one decimal; text, styles and scale factors stay as they are."""
    return COORDINATES.sub(lambda found: f'{found["name"]}="{_round_numbers(found["value"])}"', svg)


def _round_numbers(value: str) -> str:
    parts = re.split(r"(scale\([^)]*\))", value)
    return "".join(part if part.startswith("scale(") else NUMBER.sub(_round_number, part) for part in parts)


def _round_number(found: re.Match[str]) -> str:
    text = f"{float(found[0]):.1f}".removesuffix(".0")
    return "0" if text == "-0" else text
