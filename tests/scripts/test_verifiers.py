"""A taskset of `verifiers` as rows and a reward; skipped if the package is missing."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("verifiers.v1", reason="needs the package verifiers")

EXAMPLE = Path(__file__).parents[2] / "scripts" / "examples" / "verifiers_taskset.py"
TASKSET = """
import verifiers.v1 as vf

__all__ = ["Sums"]


class Data(vf.TaskData):
    answer: str


class Sum(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def right(self, trace{runtime}):
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.metric
    async def characters(self, trace):
        return float(len(trace.last_reply))


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self):
        for number in range(103):
            yield Sum(Data(prompt=f"{{number}} + 1 =", system_prompt="Add.", answer=str(number + 1)), self.config.task)
"""


def load_example(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, runtime: str = "") -> ModuleType:
    """Load the example script with a taskset in a module of this name."""
    (folder / f"{name}.py").write_text(TASKSET.format(runtime=runtime))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("TASKSET", name)
    spec = importlib.util.spec_from_file_location("verifiers_taskset", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_taskset_gives_rows_and_weighted_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_example(tmp_path, monkeypatch, "sums_of_one_answer")
    assert len(module.held_out()) == 100
    row, *others = module.train()
    assert (row["prompt"], len(others)) == ("Add.\n\n100 + 1 =", 2)
    right, wrong = (asyncio.run(module.score(row, {"solver": text})) for text in ("101", "100"))
    assert right == {"team": 2.0, "parts": {"right": 1.0, "characters": 3.0}}
    assert wrong == {"team": 0.0, "parts": {"right": 0.0, "characters": 3.0}}


def test_reward_that_needs_a_runtime_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_example(tmp_path, monkeypatch, "sums_in_a_runtime", ", runtime")
    with pytest.raises(ValueError, match="needs tools, a runtime"):
        module.train()
