"""The benchmark of curricula: its problems, its table, and what is recorded."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts" / "bench"
sys.path.insert(0, str(SCRIPTS))

import curriculum  # noqa: E402
import hard_problems  # noqa: E402
from learning import Outcome, Point  # noqa: E402
from record import Record, recorded_settings  # noqa: E402


def make_outcome(variant: str, *scores: float) -> Outcome:
    curve = [Point(samples=100 * place, seconds=0.0, score=one, held_out=True) for place, one in enumerate(scores)]
    return Outcome(
        task=curriculum.TASK, variant=variant, seed=0, overrides=("actor.model=a/b",), last=scores[-1], curve=curve
    )


def test_two_of_three_problems_are_too_hard_and_have_right_steps() -> None:
    rows = hard_problems.train()
    hard = [row for row in rows if row["kind"] == "too hard"]
    assert (len(rows), len(hard)) == (96, 64)
    for row in hard:
        first, second, third = row["numbers"]
        assert row["steps"] == [first * second, first * second - third]
        assert row["answer"] == row["steps"][-1]
        assert re.findall(r"\d+", row["question"]) == [str(first), str(second), str(third)]
    assert len({row["question"] for row in rows}) == 96


def test_responses_until_a_score_are_interpolated() -> None:
    run = make_outcome("with", 0.1, 0.1, 0.3, 0.2, 0.4)
    assert curriculum.responses_until(run, 0.2) == pytest.approx(150)
    assert curriculum.responses_until(run, 0.35) == pytest.approx(375)
    assert curriculum.responses_until(run, 0.5) is None
    assert "| with | 0 | 150 | 175 | 200 | 0.400 |" in curriculum.render([run])


def test_recorded_settings_have_no_paths(tmp_path: Path) -> None:
    given = ("actor.model=/somewhere/smollm2", "~task.agents.low", "output_dir=/somewhere/out", "seed=1")
    assert recorded_settings(given) == ("actor.model=smollm2", "~task.agents.low", "seed=1")
    record = Record(tmp_path / "data.json")
    record.add(make_outcome("with", 0.1, 0.2))
    (again,) = Record(tmp_path / "data.json").outcomes.values()
    assert again.overrides == ("actor.model=b",)


def test_outcomes_with_other_settings_are_dropped(tmp_path: Path) -> None:
    record = Record(tmp_path / "data.json")
    for seed in (0, 1):
        one = make_outcome("with", 0.1, 0.2)
        one.seed, one.overrides = seed, ("a=1", f"seed={seed}", f"name=with-{seed}")
        record.add(one)
    record.add(make_outcome("without", 0.1, 0.2))
    assert len(record.outcomes) == 3
    one.seed, one.overrides = 0, ("a=2", "seed=0", "name=with-0")
    record.add(one)
    assert [key[1:] for key in sorted(Record(tmp_path / "data.json").outcomes)] == [("with", 0), ("without", 0)]


@pytest.mark.parametrize("file", sorted((ROOT / "docs" / "data").glob("*.json")), ids=lambda file: file.name)
def test_recorded_data_has_no_paths_of_a_machine(file: Path) -> None:
    assert re.findall(r'[="]/\w+/[^" ]*', file.read_text()) == []
