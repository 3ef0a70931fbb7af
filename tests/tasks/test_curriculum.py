"""Curriculum: which prompts are drawn, as a function of the seed and earlier scores."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import CurriculumConfig
from ippo_cli.tasks.curriculum import Curriculum, build_curriculum
from ippo_cli.tasks.schedule import ExampleSchedule

LEVELS = ["easy", "hard"]
ROWS = [{"n": row, "level": LEVELS[row % 2]} for row in range(40)]


def build_settings(**changes: Any) -> CurriculumConfig:
    values: dict[str, Any] = {
        "band_low": 0.2,
        "band_high": 0.8,
        "outside_weight": 0.25,
        "success_score": 1.0,
        "smoothing": 0.5,
        "level_field": None,
        "levels": [],
        "unlock_rate": 0.7,
    }
    return CurriculumConfig(**(values | changes))


def build_schedule(curriculum: Curriculum | None) -> ExampleSchedule:
    return ExampleSchedule(ROWS, seed=3, prompts_per_iteration=4, num_generations=2, curriculum=curriculum)


def drawn_rows(curriculum: Curriculum, count: int, start: int = 0) -> list[int]:
    schedule = build_schedule(curriculum)
    positions, end = schedule.select(start, count)
    assert positions == sorted(set(positions))
    assert positions[-1] == end - 1
    return [schedule.row_at(position) for position in positions]


def test_without_rates_all_prompts_are_drawn() -> None:
    curriculum = Curriculum(build_settings(), ROWS, seed=3)
    assert build_schedule(curriculum).select(8, 4) == build_schedule(None).select(8, 4) == ([8, 9, 10, 11], 12)


def test_prompts_outside_of_the_band_are_drawn_with_their_weight() -> None:
    curriculum = Curriculum(build_settings(), ROWS, seed=3)
    rates = [0.0, 0.19, 0.2, 0.8, 0.81, 1.0]
    curriculum.record(range(6), rates)
    counts = Counter(drawn_rows(curriculum, 20_000))
    usual = sum(counts[row] for row in range(6, 40)) / 34
    for row, expected in enumerate((0.25, 0.25, 1.0, 1.0, 0.25, 0.25)):
        assert counts[row] / usual == pytest.approx(expected, abs=0.06)


def test_weight_0_removes_prompts_until_none_is_left() -> None:
    curriculum = Curriculum(build_settings(outside_weight=0.0), ROWS, seed=3)
    curriculum.record(range(39), [1.0] * 39)
    counts = Counter(drawn_rows(curriculum, 100))
    assert counts == {39: 100}
    curriculum.record([39], [0.0])
    assert len(drawn_rows(curriculum, 3)) == 3, "after two passes without a prompt, the next one is drawn"


def test_selection_depends_on_seed_and_rates_only() -> None:
    found = []
    for seed in (3, 3, 4):
        curriculum = Curriculum(build_settings(), ROWS, seed=seed)
        curriculum.record(range(40), [1.0] * 40)
        found.append(drawn_rows(curriculum, 50))
    assert found[0] == found[1] != found[2]


def test_rates_are_smoothed_and_unknown_ones_are_ignored() -> None:
    curriculum = Curriculum(build_settings(smoothing=0.75), ROWS, seed=3)
    curriculum.record([5, 7, 5, 5], [1.0, math.nan, 0.0, math.nan])
    assert curriculum.rates == {5: 0.75}


@pytest.mark.parametrize(("success_score", "expected"), [(1.0, [0.5, 0.0]), (0.5, [1.0, 0.5])])
def test_success_needs_a_score(success_score: float, expected: list[float]) -> None:
    curriculum = Curriculum(build_settings(success_score=success_score), ROWS, seed=3)
    rates = curriculum.success_rates([[1.0 - 1e-7, 0.5, math.nan], [0.5, 0.0], [math.nan, math.nan]])
    assert rates[:2] == pytest.approx([0.5 if success_score == 1.0 else 1.0, expected[1]])
    assert math.isnan(rates[2])


def test_levels_unlock_and_stay_unlocked() -> None:
    curriculum = Curriculum(build_settings(level_field="level", levels=LEVELS), ROWS, seed=3)
    assert {row % 2 for row in drawn_rows(curriculum, 40)} == {0}
    curriculum.record([0, 2], [1.0, 0.3])
    assert curriculum.unlocked == 1
    curriculum.record([2], [1.0])  # smoothed: 0.65; mean 0.825
    assert curriculum.unlocked == 2
    assert {row % 2 for row in drawn_rows(curriculum, 40)} == {0, 1}
    curriculum.record([0, 2], [0.0, 0.0])
    assert curriculum.unlocked == 2


def test_numbers_name_levels_too() -> None:
    rows = [{"level": 1}, {"level": 2}]
    curriculum = build_curriculum(build_settings(level_field="level", levels=["1", "2"]), rows, 0)
    assert curriculum is not None
    assert curriculum.accepts(0, 0)
    assert not curriculum.accepts(0, 1)


def test_unknown_levels_are_an_error_before_training() -> None:
    with pytest.raises(ConfigError, match="do not have the value 'hard' of training row 2"):
        build_curriculum(build_settings(level_field="level", levels=["easy", "other"]), ROWS, 0)


def test_inactive_without_band_and_levels() -> None:
    assert build_curriculum(build_settings(band_low=None, band_high=None), ROWS, 0) is None


def test_metrics() -> None:
    curriculum = Curriculum(build_settings(level_field="level", levels=LEVELS, outside_weight=0.0), ROWS, seed=3)
    curriculum.record([0, 1, 2, 3], [0.0, 0.5, 1.0, 0.9])
    assert curriculum.metrics(num_skipped=1, num_visited=3) == {
        "curriculum/success_rate": pytest.approx(0.6),
        "curriculum/seen_fraction": 0.1,
        "curriculum/too_hard_fraction": 0.25,
        "curriculum/too_easy_fraction": 0.5,
        "curriculum/effective_prompts": 37.0,
        "curriculum/skipped_fraction": 0.25,
        "curriculum/levels": 1.0,
    }


def test_state_is_restored_exactly() -> None:
    first = Curriculum(build_settings(level_field="level", levels=LEVELS), ROWS, seed=3)
    first.record([4, 0, 3], [0.1, 1.0, 1 / 3])
    second = Curriculum(build_settings(level_field="level", levels=LEVELS), ROWS, seed=3)
    second.load_state_dict(first.state_dict())
    assert list(second.rates.items()) == list(first.rates.items())
    assert drawn_rows(second, 30) == drawn_rows(first, 30)


def test_all_rows_may_be_scheduled() -> None:
    schedule = build_schedule(Curriculum(build_settings(), ROWS, seed=3))
    assert len(list(schedule.scheduled_examples(1))) == len(ROWS)
