"""Two ranks with different episode counts and lengths match one rank, and share errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rank_scripts import found_by_ranks

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Results of collecting_ranks.py on each of two ranks."""
    return found_by_ranks(Path(__file__).with_name("collecting_ranks.py"), folder=tmp_path_factory.mktemp("ranks"))


@pytest.fixture(scope="module")
def whole() -> list[Any]:
    """All rows in one process."""
    from collecting_ranks import Uneven, played
    from players import Players

    return json.loads(json.dumps(played(Players("low", "high").play(Uneven))))


@pytest.mark.parametrize("gather", ["all", "layer", "all: two at a time", "layer: two at a time"])
def test_uneven_ranks_match_one_rank(parts: list[dict[str, Any]], whole: list[Any], gather: str) -> None:
    found = parts[0][gather] + parts[1][gather]
    assert len(found) == len(whole) == 8
    for (failure, spoken, logprobs, paid), expected in zip(found, whole, strict=True):
        assert [failure, spoken, paid] == [expected[0], expected[1], expected[3]]
        for one, other in zip(logprobs, expected[2], strict=True):
            assert one == pytest.approx(other, abs=1e-5)
    assert [one[0] for one in found] == [""] * 6 + ["no board", ""]


@pytest.mark.parametrize("gather", ["all", "layer"])
@pytest.mark.parametrize("met", ["mistake", "mistake in the midst"])
def test_error_of_one_rank_raised_on_both(parts: list[dict[str, Any]], gather: str, met: str) -> None:
    assert [part[f"{gather}: {met}"] for part in parts] == ["OtherRankFailed", "ConfigError"]


@pytest.mark.parametrize("gather", ["all", "layer"])
def test_preemption_of_one_rank_raised_on_both(parts: list[dict[str, Any]], gather: str) -> None:
    assert [part[f"{gather}: asked to leave"] for part in parts] == ["PreemptionRequested"] * 2
