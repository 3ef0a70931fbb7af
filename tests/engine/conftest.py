"""Runs cases.py once on one rank and once on two, and provides the results to the tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rank_scripts import finish, read_output, start_ranks

CASES = Path(__file__).with_name("cases.py")


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """World size -> folder with results.pt and the output of each rank; both run at the same time."""
    folders = {size: tmp_path_factory.mktemp(f"world{size}") for size in (1, 2)}
    children = []
    for size, folder in folders.items():
        reach = {} if size == 1 else {"PATH": "/nonexistent"}  # two ranks have no compiler on the path, one may
        extensions = str(folder / "extensions")
        children += start_ranks(
            CASES, str(folder), folder=folder, world_size=size, TORCH_EXTENSIONS_DIR=extensions, **reach
        )
    finish(children, limit_s=300)
    return folders


@pytest.fixture(params=(1, 2), ids=("1 rank", "2 ranks"))
def folder(runs: dict[int, Path], request: pytest.FixtureRequest) -> Path:
    here = runs[request.param]
    if not (here / "results.pt").exists():
        pytest.fail(f"the ranks did not finish:\n{read_output(here)}", pytrace=False)
    return here


@pytest.fixture
def results(folder: Path) -> dict[str, Any]:
    """Case name -> result of rank 0; every test that uses it runs for one rank and for two."""
    return torch.load(folder / "results.pt", weights_only=False)
