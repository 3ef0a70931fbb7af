"""What is planned for a training, against what the kernel says that it takes."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts" / "bench"))

from plan_memory import BASE, PHASES, STEPS, measured, planned, result, table  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("keys", [("actor.dtype=fp32", "deepspeed=zero3"), ("actor.dtype=bf16", "deepspeed=zero1")])
def test_the_greatest_moment_of_a_training_is_planned_within_15_percent(tmp_path: Path, keys: tuple[str, ...]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("What is 12 + 34? Answer with the number only. 56, 78, 90.\n" * 20)
    example = ROOT / "scripts" / "examples" / "small_model.py"
    # Large enough for what Python itself takes meanwhile not to count.
    runpy.run_path(str(example))["make"](text, tmp_path / "model", vocabulary=300, hidden=768, layers=6, seed=0)
    overrides = [*BASE, f"actor.model={tmp_path / 'model'}", *STEPS, *keys]
    said, seen = planned(1, overrides), result(measured(1, overrides))
    assert max(said, key=lambda phase: said[phase]) == max(seen, key=lambda phase: seen[phase])
    assert max(said.values()) == pytest.approx(max(seen.values()), rel=0.15)


def test_a_table_has_a_row_for_each_setting_and_the_ratio_of_its_greatest_moments() -> None:
    sizes = {phase: 2**20 * place for place, phase in enumerate(PHASES, 1)}
    settings = {"fp32": {"ranks": 2, "planned": sizes, "measured": {phase: 2 * size for phase, size in sizes.items()}}}
    assert table(settings).splitlines()[2:] == ["| fp32 | 2 | 1 / 2 | 2 / 4 | 3 / 6 | 4 / 8 | 5 / 10 | 0.50 |"]
