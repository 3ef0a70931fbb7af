"""The report of the episode benchmark: table, pictures and reference scores."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "bench"))

from episodes import PROOFS, blackjack, relay_bound, table, tabular, tictactoe
from learning import Outcome, Point


def make_outcome(task: str, variant: str, seed: int, last: float, error: str | None = None) -> Outcome:
    curve = [
        Point(samples=8 * row, seconds=float(row), score=last * row / 4, held_out=row % 2 == 0) for row in range(5)
    ]
    return Outcome(
        task=task, variant=variant, seed=seed, overrides=(), error=error, last=last, wall_seconds=3.0, curve=curve
    )


def test_table_has_scores_and_references_of_every_variant() -> None:
    outcomes = [
        make_outcome("relay", "sequential", 0, 1.0),
        make_outcome("relay", "sequential", 1, 0.9),
        make_outcome("relay", "parallel", 0, 0.5),
        make_outcome("relay", "parallel", 1, 0.0, error="exit code 10"),
    ]
    lines = table(outcomes, {"relay": {"the best without hearing": 0.53125, "solved": 1.0}})
    task_cell = f"| [`relay`](pictures/episodes-relay.svg): {PROOFS['relay'].about} |"
    reference_cell = "| the best without hearing 0.53, solved 1.00 |"
    assert lines[-2:] == [  # training scores: half of the held-out ones, see `make_outcome`
        f"{task_cell} sequential | 0.24 -> 0.47 (0.45 to 0.50), 3 s {reference_cell}",
        f"{task_cell} parallel | 0.12 -> 0.25, 3 s, 1 failed {reference_cell}",
    ]
    held_out = table([make_outcome("signalling", "sequential", 0, 0.9)], {"signalling": {"solved": 1.0}})
    assert held_out[4].endswith("| sequential | 0.00 -> 0.90, 3 s | solved 1.00 |")


def test_table_keeps_lines_of_skipped_tasks() -> None:
    ladder = table([make_outcome("ladder", next(iter(PROOFS["ladder"].ways)), 0, 0.9)], {"ladder": {}})
    lines = table([make_outcome("relay", "sequential", 0, 1.0)], {"relay": {}}, "\n".join(ladder))
    assert set(ladder) < set(lines)
    assert len(lines) == len(set(lines))
    assert sum("`relay`" in line for line in lines) == len(PROOFS["relay"].ways)


def test_picture_shows_variants_and_references(tmp_path: Path) -> None:
    from curves import compare

    outcomes = [make_outcome("relay", variant, seed, 0.5) for variant in ("sequential", "parallel") for seed in (0, 1)]
    file = compare("relay", outcomes, {"solved": 1.0}, tmp_path)
    assert file == tmp_path / "episodes-relay.svg"
    text = file.read_text()
    for word in ("sequential", "parallel", "solved"):
        assert word in text
    assert compare("taxi", [], {"solved": 1.0}, tmp_path).exists(), "a picture without runs shows only references"


def test_references_are_computed_and_ordered() -> None:
    assert relay_bound() == pytest.approx((1 + 9 / 16) / 2)
    pytest.importorskip("gymnasium")
    assert tabular("FrozenLake-v1, not slippery", "optimal") == pytest.approx(1.0)
    for score in (blackjack, tictactoe, lambda policy: tabular("CliffWalking-v1", policy)):
        assert score("random") < score("optimal")
    assert set(PROOFS) >= {"signalling", "relay", "ladder", "frozen_lake", "taxi", "blackjack", "tictactoe"}
