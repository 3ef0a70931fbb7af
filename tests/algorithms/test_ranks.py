"""Two ranks with six and two rows give the results of one rank with all eight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from loaded import loaded
from rank_scripts import found_by_ranks

from ippo_cli.algorithms.resampling import draw_sample_counts
from ippo_cli.compose.load import load_config

RANKS = Path(__file__).with_name("ranks.py")


@pytest.fixture(scope="module")
def whole() -> dict[str, Any]:
    """Results of ranks.py in one process, for all rows."""
    return loaded(RANKS, "algorithm_ranks").results(slice(0, 8))


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Results of ranks.py on each of two ranks."""
    return found_by_ranks(RANKS, folder=tmp_path_factory.mktemp("ranks"))


def test_group_across_ranks(parts: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    assert [len(part["advantages"]) for part in parts] == [6, 2]
    assert parts[0]["advantages"] + parts[1]["advantages"] == pytest.approx(whole["advantages"])
    assert whole["advantages"][6] == pytest.approx(3 - (2 + 7 - 4) / 3)


def test_sample_counts_per_rank(parts: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    assert [len(part["counts"]) for part in parts] == [6, 2]
    assert parts[0]["counts"] + parts[1]["counts"] == whole["counts"]
    assert len(set(whole["counts"])) > 1


def test_sample_counts_differ_between_buffers() -> None:
    settings = load_config(["algorithm=pf_ppo"]).algorithm.reweight
    first, second, again = (
        draw_sample_counts(
            torch.arange(8.0), torch.ones(8).bool(), start + torch.arange(8), settings, stream="some"
        ).tolist()
        for start in (0, 8, 0)
    )
    assert first == again != second


def test_step_rows_independent_of_placement(parts: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    assert [len(part["steps"]) for part in parts] == [len(whole["steps"])] * 2 == [3, 3]
    for first, second, (rows, counts) in zip(*(part["steps"] for part in parts), whole["steps"], strict=True):
        assert sorted(first[0] + second[0]) == sorted(rows)
        assert first[1] == second[1] == counts
    drawn = [row for rows, _ in whole["steps"] for row in rows]
    assert sorted(drawn) == ["0", "1", "1", "3", "4", "5", "5", "5"]


def test_joint_step_rows_independent_of_placement(parts: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    expected = whole["joint steps"]
    assert [len(part["joint steps"]) for part in parts] == [len(expected)] * 2 == [6, 6]
    for first, second, (rows, counts) in zip(*(part["joint steps"] for part in parts), expected, strict=True):
        assert sorted(first[0] + second[0]) == sorted(rows)
        assert first[1] == second[1] == counts
    assert all(any(rows for rows, _ in part["joint steps"]) for part in parts)
    drawn = sorted(row for rows, _ in expected for row in rows)
    assert drawn == sorted(f"{row} of {agent}" for row in "22234667" for agent in range(2))
    assert any({row[-1] for row in rows} == {"0", "1"} for rows, _ in expected), "one step sees both agents' rows"
