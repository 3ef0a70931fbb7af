"""The examples of docs/python.md run, and give what the page shows."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from ippo_cli.api import overrides

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


@pytest.mark.slow
@pytest.mark.core
def test_examples_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert (result.failed, result.attempted > 20) == (0, True)


def test_examples_of_docstrings():
    result = doctest.testmod(overrides)
    assert (result.failed, result.attempted) == (0, 2)
