"""Two ranks whose episodes differ in number and length play what one rank plays, and meet what one of them meets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ippo_cli

SOURCE = Path(ippo_cli.__file__).parents[1]
RANKS = Path(__file__).with_name("collecting_ranks.py")


@pytest.fixture(scope="module")
def parts() -> list[dict[str, Any]]:
    """What collecting_ranks.py finds on each of two ranks."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        **os.environ,
        "PYTHONPATH": str(SOURCE),
        "OMP_NUM_THREADS": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(RANKS)],
            env={**shared, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    said = [rank.communicate(timeout=200) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


@pytest.fixture(scope="module")
def whole() -> list[Any]:
    """All rows in one process."""
    from collecting_ranks import Uneven, played
    from players import Players

    return json.loads(json.dumps(played(Players("low", "high").play(Uneven))))


@pytest.mark.slow
@pytest.mark.parametrize("gather", ["all", "layer"])
def test_uneven_ranks_play_what_one_rank_plays(parts: list[dict[str, Any]], whole: list[Any], gather: str) -> None:
    found = parts[0][gather] + parts[1][gather]
    assert len(found) == len(whole) == 8
    for (failure, spoken, logprobs, paid), expected in zip(found, whole, strict=True):
        assert [failure, spoken, paid] == [expected[0], expected[1], expected[3]]
        for one, other in zip(logprobs, expected[2], strict=True):
            assert one == pytest.approx(other, abs=1e-5)
    assert [one[0] for one in found] == [""] * 6 + ["no board", ""]


@pytest.mark.slow
@pytest.mark.parametrize("gather", ["all", "layer"])
@pytest.mark.parametrize("met", ["mistake", "mistake in the midst"])
def test_a_mistake_that_one_rank_meets_ends_both(parts: list[dict[str, Any]], gather: str, met: str) -> None:
    assert [part[f"{gather}: {met}"] for part in parts] == ["OtherRankFailed", "ConfigError"]


@pytest.mark.slow
@pytest.mark.parametrize("gather", ["all", "layer"])
def test_a_rank_that_is_asked_to_leave_takes_the_other_with_it(parts: list[dict[str, Any]], gather: str) -> None:
    assert [part[f"{gather}: asked to leave"] for part in parts] == ["PreemptionRequested"] * 2
