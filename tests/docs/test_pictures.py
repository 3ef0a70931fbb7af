"""Pictures have coordinates with one decimal; their text and styles stay as drawn."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from loaded import loaded

ROOT = Path(__file__).parents[2]
svg_files = loaded(ROOT / "scripts" / "bench" / "svg_files.py", "svg_files_script")


@pytest.mark.parametrize("file", sorted((ROOT / "docs/pictures").glob("*.svg")), ids=lambda file: file.stem)
def test_coordinates_have_one_decimal(file: Path) -> None:
    attributes = re.findall(r'\b([\w:-]+)="([^"]*)"', file.read_text())
    long = {name for name, value in attributes if re.search(r"\d\.\d\d", value)}
    assert long <= {"style", "version"}


def test_text_styles_and_scales_are_not_rounded() -> None:
    original = (
        '<path d="M 1.26 -0.04 L 2.0" style="opacity: 0.25"/><g transform="translate(1.26 2) scale(0.015 -0.015)">'
    )
    rounded = '<path d="M 1.3 0 L 2" style="opacity: 0.25"/><g transform="translate(1.3 2) scale(0.015 -0.015)">'
    assert svg_files.round_coordinates(f"{original}0.975</g>") == f"{rounded}0.975</g>"
