"""The benchmark of critics: curves with pretraining, and scores at equal time."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench" / "critics.py"
sys.path.insert(0, str(SCRIPT.parent))

import critics  # noqa: E402
from learning import Outcome, Point, score_after  # noqa: E402


def make_outcome(*points: tuple[int, float, float], cpu_seconds: float = 0.0) -> Outcome:
    curve = [Point(samples=samples, seconds=seconds, score=score, held_out=True) for samples, seconds, score in points]
    return Outcome(
        task="copy",
        variant="plain",
        seed=0,
        overrides=(),
        last=curve[-1].score,
        wall_seconds=10.0,
        cpu_seconds=cpu_seconds,
        curve=curve,
    )


def test_pretraining_counts_as_samples_and_time() -> None:
    before = make_outcome((0, 0.0, 0.0), (100, 4.0, 0.5), cpu_seconds=5.0)
    run = make_outcome((0, 0.0, 0.2), (300, 8.0, 1.0), cpu_seconds=5.0)
    found = critics._in_cpu_seconds(run, before)
    assert [(one.samples, one.seconds) for one in found.curve] == [(100, 2.0), (400, 6.0)]
    unknown = critics._in_cpu_seconds(make_outcome((0, 0.0, 0.2), (300, 8.0, 1.0)), before)
    assert [one.samples for one in unknown.curve] == [100, 400]


def test_mean_over_samples_includes_pretraining() -> None:
    run = make_outcome((100, 2.0, 0.2), (200, 3.0, 0.6), (300, 4.0, 1.0))
    assert critics._area(run) == pytest.approx((100 * 0.2 + 100 * 0.4 + 100 * 0.8) / 300)


def test_score_before_the_first_evaluation_is_its_score() -> None:
    run = make_outcome((100, 5.0, 0.1), (200, 10.0, 0.9))
    assert score_after(run, 3.0) == 0.1
    assert score_after(run, 7.5) == pytest.approx(0.5)
