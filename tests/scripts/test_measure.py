"""The measures of the code only improve: `python scripts/measure.py --record` after an improvement."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "measure.py"
# Grow with what the project can do; the others describe its form.
SIZES = ("source files", "source lines", "test lines", "words of documents", "YAML files", "keys of the default run")
TOLERANCE = 1.01


@pytest.fixture(scope="module")
def measured() -> dict[str, float]:
    spec = importlib.util.spec_from_file_location("measure", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.measure()


@pytest.mark.parametrize("name", json.loads((Path(__file__).parent / "measures.json").read_text()))
def test_measure_is_not_worse_than_recorded(name: str, measured: dict[str, float]) -> None:
    recorded = json.loads((Path(__file__).parent / "measures.json").read_text())[name]
    allowed = recorded * TOLERANCE if name in SIZES else recorded
    assert measured[name] <= allowed, f"{name}: {measured[name]} after {recorded}; state the reason in the commit"
