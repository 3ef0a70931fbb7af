"""Rewards on two ranks: one buffer, one answer, and nobody waits for a rank whose reward failed."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ippo_cli

SOURCE = Path(ippo_cli.__file__).parents[1]


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    """What ranks.py found on each of two ranks."""
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
    command = [sys.executable, str(Path(__file__).with_name("ranks.py"))]
    ranks = [
        subprocess.Popen(command, env={**shared, "RANK": rank, "LOCAL_RANK": rank}, stdout=-1, stderr=-1, text=True)
        for rank in ("0", "1")
    ]
    said = [rank.communicate(timeout=100) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


def test_every_rank_knows_every_part(found: list[dict[str, Any]]) -> None:
    assert [rank["parts"] for rank in found] == [["of_0", "of_1"]] * 2
    assert [rank["parts after a failure"] for rank in found] == [["share"]] * 2


def test_a_rank_whose_reward_failed_leaves_its_own_rows_out(found: list[dict[str, Any]]) -> None:
    assert [rank["valid"] for rank in found] == [None, [False] * 3]


def test_the_budget_is_the_whole_buffers_and_all_ranks_stop_with_the_reason(found: list[dict[str, Any]]) -> None:
    for rank in found:
        assert "3 of 6 rows have no reward" in rank["told"]
        assert rank["told"].endswith("ValueError: only here")


def test_a_zscore_is_taken_over_the_valid_rows_of_all_ranks(found: list[dict[str, Any]]) -> None:
    deviation = 2.5**0.5  # of 1 2 3 4 5
    expected = [(number - 3) / deviation for number in (1, 2, 3, 4, 5)]
    assert [*found[0]["zscore"], *found[1]["zscore"]] == pytest.approx([*expected, 0.0])


def test_a_running_zscore_takes_in_the_valid_rows_of_all_ranks(found: list[dict[str, Any]]) -> None:
    seen = (1, 2, 1, 2, 3, 4, 5)
    mean, deviation = statistics.mean(seen), statistics.stdev(seen)
    expected = [(number - mean) / deviation for number in (1, 2, 3, 4, 5)]
    assert [*found[0]["running zscore"], *found[1]["running zscore"]] == pytest.approx([*expected, 0.0])
