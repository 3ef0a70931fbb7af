"""Engines on some of the ranks: the same training as on one rank, and engines of two groups on one rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rank_scripts import finish, read_output, start_ranks

FIRST_RANKS = {"(1, 2)": 1, "(2,)": 2, "(0, 1)": 0}


@pytest.fixture(scope="module")
def results_by_rank(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The results of each rank."""
    folder = tmp_path_factory.mktemp("groups")
    script = Path(__file__).with_name("grouped_ranks.py")
    codes = finish(start_ranks(script, str(folder), folder=folder, world_size=3), limit_s=300)
    assert codes == [0, 0, 0], read_output(folder)
    return [json.loads((folder / f"printed{rank}").read_text().splitlines()[-1]) for rank in range(3)]


@pytest.mark.slow
@pytest.mark.core
@pytest.mark.parametrize("stage", range(4))
def test_engines_of_groups_train_alike(results_by_rank: list[dict[str, Any]], stage: int) -> None:
    expected = results_by_rank[2][f"(2,) stage {stage}"]
    updated, again, loaded = expected["weights"]
    assert again == loaded != updated
    for name, first in FIRST_RANKS.items():
        group = results_by_rank[first][f"{name} stage {stage}"]
        for weights, other in zip(group["weights"], expected["weights"], strict=True):
            assert weights == pytest.approx(other, abs=1e-6)
        assert group["logits"] == pytest.approx(expected["logits"], abs=1e-5)
    assert results_by_rank[2][f"(1, 2) stage {stage}"]["weights"] == [None] * 3, (
        "the first rank of a group has the weights"
    )


@pytest.mark.slow
def test_rank_with_engines_of_two_groups(results_by_rank: list[dict[str, Any]]) -> None:
    (first, _, third) = [result["both"] for result in results_by_rank]
    assert first == pytest.approx(third, abs=1e-6)
    assert len(results_by_rank[1]["both"]) == len(first)
    assert [result["ranks"] for result in results_by_rank] == [[0, 1, 2]] * 3
