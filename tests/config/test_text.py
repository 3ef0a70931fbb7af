"""Text width, truncation, lists of names and tables."""

from __future__ import annotations

import pytest

from ippo_cli.config.tables import format_csv
from ippo_cli.config.text import format_table, join_fitting, join_names, shorten_name, text_width, truncate_text


@pytest.mark.parametrize(("text", "width"), [("", 0), ("abc", 3), ("中文", 4), ("é", 1), ("e\u0301", 1), ("…▁", 2)])
def test_text_width(text: str, width: int) -> None:
    assert text_width(text) == width


def test_truncate_text() -> None:
    assert truncate_text("x" * 160) == "x" * 160
    assert truncate_text("x" * 161) == "x" * 159 + "…"
    for text in ("中" * 500, "e\u0301" * 500, "a中" * 500):
        assert 157 <= text_width(truncate_text(text)) <= 160
        assert truncate_text(text).endswith("…")


@pytest.mark.parametrize("name", ["writer_of_the_first_part_1", "中" * 30, "n" * 70])
@pytest.mark.parametrize("width", [1, 2, 3, 8, 24])
def test_shorten_name(name: str, width: int) -> None:
    assert text_width(shorten_name(name, width)) <= width
    assert shorten_name("low", 3) == "low"


def test_join_names() -> None:
    assert join_names(["low"]) == "low"
    assert join_names(["low", "high"]) == "low and high"
    assert join_names(["a", "b", "c"]) == "a, b and c"
    assert join_names([f"a{number}" for number in range(20)]) == "a0, a1, a2 and 17 more"
    assert join_names(["n" * 70 + "_1", "b"]) == "n" * 15 + "…" + "n" * 6 + "_1 and b"


def test_join_fitting() -> None:
    parts = ["first", "second", "third"]
    assert join_fitting(parts, 20) == "first, second, third"
    assert join_fitting(parts, 19) == "first, and 2 more"
    assert join_fitting(parts, 3) == "3 more"
    assert join_fitting([], 3) == ""


def test_format_table_wraps_wide_tables() -> None:
    rows = [["name", "meaning", "n"], ["first", "word " * 40, "12"], ["x" * 50, "short", "3"]]
    lines = format_table(rows, width=60)
    assert max(map(len, lines)) <= 60
    assert " ".join(line[-8:] for line in lines).split()[0] == "n"
    assert "".join("".join(line.split()) for line in lines).count("word") == 40
    assert format_table([["a", "b"], ["1", "22"]], numbers=True) == ["a   b", "1  22"]


def test_format_table_does_not_break_words() -> None:
    rows = [["way", "size", "tokens that fit"], ["a=stage_one b.offload=true", "12.3 GiB", "2048"]]
    lines = format_table(rows, width=40)
    assert max(map(len, lines)) <= 40
    assert "b.offload=true" in " ".join(lines).split()


@pytest.mark.parametrize(
    ("cell", "written"),
    [("=1+1", "'=1+1"), ("+x", "'+x"), ("@a", "'@a"), ("-0.5", "-0.5"), ("1e-6", "1e-6"), ("run", "run"), ("", "")],
)
def test_cells_that_a_spreadsheet_would_compute(cell: str, written: str) -> None:
    assert format_csv([[cell, "a"]]) == f"{written},a\n"
