"""Planned memory of a training compared with the memory reported by the kernel."""

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
def test_planned_peak_memory_is_within_15_percent(tmp_path: Path, keys: tuple[str, ...]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("What is 12 + 34? Answer with the number only. 56, 78, 90.\n" * 20)
    example = ROOT / "scripts" / "examples" / "small_model.py"
    # Large enough that the memory of Python itself is negligible.
    runpy.run_path(str(example))["make"](text, tmp_path / "model", vocabulary=300, hidden=768, layers=6, seed=0)
    overrides = [*BASE, f"actor.model={tmp_path / 'model'}", *STEPS, *keys]
    planned_sizes, measured_sizes = planned(1, overrides), result(measured(1, overrides))
    assert max(planned_sizes, key=lambda phase: planned_sizes[phase]) == max(
        measured_sizes, key=lambda phase: measured_sizes[phase]
    )
    assert max(planned_sizes.values()) == pytest.approx(max(measured_sizes.values()), rel=0.15)


def test_table_has_sizes_and_ratio_of_peaks() -> None:
    sizes = {phase: 2**20 * place for place, phase in enumerate(PHASES, 1)}
    settings = {"fp32": {"ranks": 2, "planned": sizes, "measured": {phase: 2 * size for phase, size in sizes.items()}}}
    assert table(settings).splitlines()[2:] == ["| fp32 | 2 | 1 / 2 | 2 / 4 | 3 / 6 | 4 / 8 | 5 / 10 | 0.50 |"]
