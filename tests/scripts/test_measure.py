"""The measures of the code only improve: `python scripts/measure.py --record` after an improvement."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "measure.py"
# Grow with what the project can do; the others describe its form.
SIZES = ("source files", "source lines", "test lines", "words of documents", "YAML files", "keys of the default run")
TOLERANCE = 1.01


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("measure", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def measures(script: ModuleType) -> dict[str, float]:
    return script.measure()


def test_planning_asks_no_class_of_a_configuration(script: ModuleType) -> None:
    files = sorted((script.SOURCE / "planning").glob("*.py"))
    assert files
    assert script.count_class_checks(files) == 0, "ask a method of the configuration's class"


@pytest.mark.parametrize("name", json.loads((Path(__file__).parent / "measures.json").read_text()))
def test_measure_is_not_worse_than_recorded(name: str, measures: dict[str, float]) -> None:
    recorded = json.loads((Path(__file__).parent / "measures.json").read_text())[name]
    allowed = recorded * TOLERANCE if name in SIZES else recorded
    assert measures[name] <= allowed, f"{name}: {measures[name]} after {recorded}; state the reason in the commit"
