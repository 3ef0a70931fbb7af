"""The core without the folder `lab`: it trains, and the lab's methods end with a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDE = '''
import sys


class HideLab:
    """Imports fail as if the folder had been deleted."""

    def find_spec(self, name, path=None, target=None):
        if name == "ippo_cli.lab" or name.startswith("ippo_cli.lab."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, HideLab())
'''
SMALL = (
    "num_iterations=1",
    "task.train_size=16",
    "task.eval_size=4",
    "rollout.buffer_size=8",
    "actor.hidden_size=16",
    "actor.num_layers=1",
    "actor.num_heads=2",
    "actor.warm_start_steps=0",
    "evaluation.every=0",
    "evaluation.greedy=false",
    "tracker.tensorboard=false",
)


def train_without_lab(root: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    """Run `ippo-train` in processes that cannot import the lab."""
    (root / "sitecustomize.py").write_text(HIDE)
    program = "import sys; from ippo_cli.cli.train import main; sys.argv[0] = 'ippo-train'; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *SMALL, f"output_dir={root / 'runs'}", *overrides],
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.core
@pytest.mark.slow
def test_core_trains(tmp_path: Path) -> None:
    ended = train_without_lab(tmp_path, "algorithm=ippo")
    assert ended.returncode == 0, ended.stderr + ended.stdout
    assert len(list(tmp_path.glob("runs/*/*/metrics.jsonl"))) == 1


@pytest.mark.slow
def test_method_of_the_lab_is_refused(tmp_path: Path) -> None:
    ended = train_without_lab(tmp_path, "algorithm.advantage=turn_group")
    assert ended.returncode == 2, ended.stderr + ended.stdout
    text = " ".join((ended.stderr + ended.stdout).split())
    assert "ippo: algorithm.advantage=turn_group cannot be imported (" in text
    assert "No module named 'ippo_cli.lab'); fix the package" in text
    assert list(tmp_path.glob("runs/*")) == []
