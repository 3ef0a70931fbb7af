"""The fault matrix names what there is, and the page shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from matrix import FAULTS, PAGE, PROMISES, RESUMED, Row, with_table

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("row", [*PROMISES, *FAULTS, *RESUMED], ids=lambda row: row.what)
def test_what_shows_a_row_is_there(row: Row) -> None:
    assert row.shown or row.missing, "neither shown nor said to be missing"
    [parts] = re.findall(r"^PARTS = \((.*)\)$", (TESTS / "faults" / "campaign.py").read_text(), re.MULTILINE)
    for name in row.shown:
        file, _, test = name.partition("::")
        if test:
            assert re.search(rf"^def {test}\(", (TESTS / file).read_text(), re.MULTILINE), name
        else:
            assert f'"{name.removeprefix("campaign ")}"' in parts, name


def test_the_page_shows_the_matrix_as_it_is() -> None:
    page = PAGE.read_text()
    assert page == with_table(page), "run python tests/faults/matrix.py"
