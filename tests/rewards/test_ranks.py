"""Rewards on two ranks: shared statistics and budgets, and no deadlock if the reward fails on one rank."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
from rank_scripts import found_by_ranks


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The output of ranks.py on two ranks."""
    return found_by_ranks(Path(__file__).with_name("ranks.py"), folder=tmp_path_factory.mktemp("ranks"))


def test_all_ranks_have_all_parts(found: list[dict[str, Any]]) -> None:
    assert [rank["parts"] for rank in found] == [["of_0", "of_1"]] * 2
    assert [rank["parts after a failure"] for rank in found] == [["share"]] * 2


def test_failed_rank_excludes_its_own_rows(found: list[dict[str, Any]]) -> None:
    assert [rank["valid"] for rank in found] == [None, [False] * 3]


def test_failure_budget_covers_all_ranks(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert "3 of 6 rows have no reward" in rank["error"]
        assert rank["error"].endswith("ValueError: only here")
        assert rank["within"].startswith("3 of 6 rows have no reward and are excluded from training; ")
        assert rank["within"].endswith("ValueError: only here")


def test_zscore_over_all_ranks(found: list[dict[str, Any]]) -> None:
    deviation = 2.5**0.5  # of 1, 2, 3, 4, 5
    expected = [(number - 3) / deviation for number in (1, 2, 3, 4, 5)]
    assert [*found[0]["zscore"], *found[1]["zscore"]] == pytest.approx([*expected, 0.0])


def test_running_zscore_over_all_ranks(found: list[dict[str, Any]]) -> None:
    seen = (1, 2, 1, 2, 3, 4, 5)
    mean, deviation = statistics.mean(seen), statistics.stdev(seen)
    expected = [(number - mean) / deviation for number in (1, 2, 3, 4, 5)]
    assert [*found[0]["running zscore"], *found[1]["running zscore"]] == pytest.approx([*expected, 0.0])
    squares = statistics.variance(seen) * 6
    assert [rank["observed"] for rank in found] == [pytest.approx({"count": 7, "mean": mean, "squares": squares})] * 2


def test_zscore_of_rows_with_different_turn_counts(found: list[dict[str, Any]]) -> None:
    totals = (1, 3, 6, 6)  # of rows with turns that did not fail
    mean, deviation = statistics.mean(totals), statistics.stdev(totals)
    one, two = (1 - mean) / deviation, (2 - mean) / deviation
    assert found[0]["by turn"] == [pytest.approx(row) for row in ([one, 0], [1 / deviation, two], [0, 0])]
    three = [1 / deviation, 2 / deviation, (3 - mean) / deviation]
    assert found[1]["by turn"] == [pytest.approx(row) for row in (three, three, [0, 0, 0])]
    assert [rank["by turn valid"] for rank in found] == [[True, True, False], [True, True, False]]
    assert [rank["by turn failed"] for rank in found] == [[False] * 3, [False, False, True]]
    assert {rank["by turn error"] for rank in found} == {
        "1 of 6 rows have no reward and are excluded from training; ValueError: the world broke"
    }


def test_counterfactual_credit_across_ranks(found: list[dict[str, Any]]) -> None:
    # First prompt: answers a b c with x y x, compared with (b, c), (a, c) and (a, b) with the same x y x.
    # Second prompt: answers a c c with y x y, the last two on rank 1; `a` with x would score 1.
    expected = [1.0, 6.0, -0.5, 0.0, -0.5, 0.0]
    assert [*found[0]["counterfactual"], *found[1]["counterfactual"]] == pytest.approx(expected)


def test_mix_normalization_over_all_ranks(found: list[dict[str, Any]]) -> None:
    expected = [(number - 3) / 2.5**0.5 + 2 for number in (1, 2, 3, 4, 5)]
    assert [*found[0]["mix"], *found[1]["mix"]] == pytest.approx([*expected, 0.0])
    assert [rank["mix of one rank"] for rank in found] == [pytest.approx([1.0, 2.0, 3.0]), [0.0] * 3]
