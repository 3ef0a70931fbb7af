"""A finished run, trained once, and copies of it to edit."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small import train

KEYS = ("task=sorting_solo", "num_iterations=3", "evaluation.every=3", "tracker.samples_every=1")


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three iterations, with checkpoints after the second and the third."""
    return train(tmp_path_factory.mktemp("finished"), *KEYS)


@pytest.fixture
def run_copy(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    return Path(shutil.copytree(finished_run, tmp_path / finished_run.name))
