"""Tests named by the fault matrix exist, and its page is up to date."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from matrix import FAULTS, GUARANTEES, PAGE, RESUMED, Row, replace_tables

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("row", [*GUARANTEES, *FAULTS, *RESUMED], ids=lambda row: row.subject)
def test_tests_of_row_exist(row: Row) -> None:
    assert row.tests or row.missing, "a row needs tests or `missing`"
    [parts] = re.findall(r"^PARTS = \((.*)\)$", (TESTS / "faults" / "campaign.py").read_text(), re.MULTILINE)
    for name in row.tests:
        file, _, test = name.partition("::")
        if test:
            assert re.search(rf"^def {test}\(", (TESTS / file).read_text(), re.MULTILINE), name
        else:
            assert f'"{name.removeprefix("campaign ")}"' in parts, name


def test_page_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == replace_tables(page), "run python tests/faults/matrix.py"
