"""The report of what is learnt in episodes: its table, its pictures, and what scores are compared with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

from episodes import PROOFS, blackjack, relay_bound, table, tabular, tictactoe
from learning import Outcome, Point


def trained(task: str, way: str, seed: int, last: float, error: str | None = None) -> Outcome:
    curve = [
        Point(samples=8 * row, seconds=float(row), score=last * row / 4, held_out=row % 2 == 0) for row in range(5)
    ]
    return Outcome(
        task=task, variant=way, seed=seed, overrides=(), error=error, last=last, wall_seconds=3.0, curve=curve
    )


def test_every_way_has_a_line_with_its_seeds_and_what_it_is_compared_with() -> None:
    outcomes = [
        trained("relay", "sequential", 0, 1.0),
        trained("relay", "sequential", 1, 0.9),
        trained("relay", "parallel", 0, 0.5),
        trained("relay", "parallel", 1, 0.0, error="exit code 10"),
    ]
    lines = table(outcomes, {"relay": {"the best without hearing": 0.53125, "solved": 1.0}})
    about = f"| [`relay`](pictures/episodes-relay.svg): {PROOFS['relay'].about} |"
    compared = "| the best without hearing 0.53, solved 1.00 |"
    assert lines[-2:] == [  # of what was trained on: half of what is held out, see `trained`
        f"{about} sequential | 0.24 -> 0.47 (0.45 to 0.50), 3 s {compared}",
        f"{about} parallel | 0.12 -> 0.25, 3 s, 1 failed {compared}",
    ]
    held_out = table([trained("signalling", "sequential", 0, 0.9)], {"signalling": {"solved": 1.0}})
    assert held_out[4].endswith("| sequential | 0.00 -> 0.90, 3 s | solved 1.00 |")


def test_lines_of_what_was_not_run_again_stay() -> None:
    ladder = table([trained("ladder", next(iter(PROOFS["ladder"].ways)), 0, 0.9)], {"ladder": {}})
    both = table([trained("relay", "sequential", 0, 1.0)], {"relay": {}}, "\n".join(ladder))
    assert set(ladder) < set(both)
    assert len(both) == len(set(both))
    assert sum("`relay`" in line for line in both) == len(PROOFS["relay"].ways)


def test_ways_and_references_are_drawn_into_one_picture(tmp_path: Path) -> None:
    from curves import compare

    outcomes = [trained("relay", way, seed, 0.5) for way in ("sequential", "parallel") for seed in (0, 1)]
    file = compare("relay", outcomes, {"solved": 1.0}, tmp_path)
    assert file == tmp_path / "episodes-relay.svg"
    text = file.read_text()
    for word in ("sequential", "parallel", "solved"):
        assert word in text
    assert compare("taxi", [], {"solved": 1.0}, tmp_path).exists(), "nothing was learnt, and that is drawn"


def test_references_lie_in_order_and_are_computed() -> None:
    assert relay_bound() == pytest.approx((1 + 9 / 16) / 2)
    pytest.importorskip("gymnasium")
    assert tabular("FrozenLake-v1, not slippery", "optimal") == pytest.approx(1.0)
    for score in (blackjack, tictactoe, lambda which: tabular("CliffWalking-v1", which)):
        assert score("random") < score("optimal")
    assert set(PROOFS) >= {"signalling", "relay", "ladder", "frozen_lake", "taxi", "blackjack", "tictactoe"}
