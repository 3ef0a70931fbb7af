"""Runs in folders whose names are special for a shell, Hydra or a glob."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from small import new_run, rows

from ippo_cli.config.errors import ResumeError
from ippo_cli.runs.folder import check_metrics
from ippo_cli.training.process import run_training


def test_run_in_folder_with_brackets_resumes(tmp_path: Path) -> None:
    config, folder = new_run(tmp_path / "a=b [1] {x}, ünï*", "num_iterations=1", "evaluation.every=0")
    run_training(config, folder, resumed=False)
    run_training(replace(config, num_iterations=2), folder, resumed=True)
    assert [row["iteration"] for row in rows(folder)] == [0, 1, 2]
    # Damaged metrics are reported with file and line; fewer iterations than completed are rejected.
    metrics = folder / "metrics.jsonl"
    text = metrics.read_text()
    metrics.write_text(text.replace('"iteration": 1', '"iteration" 11'))
    with pytest.raises(ResumeError, match=r"metrics\.jsonl, line 2: not a row of metrics"):
        run_training(replace(config, num_iterations=3), folder, resumed=True)
    (newest,) = (folder / "checkpoints").glob("step_00000002")
    with pytest.raises(ResumeError, match=r"metrics\.jsonl, line 2: not a row of metrics"):
        check_metrics(newest)
    metrics.write_text(text + '{"iteration": 3, "half a r')  # rows after the checkpoint are dropped
    check_metrics(newest)
    with pytest.raises(ResumeError, match=r"num_iterations=1 is less than the 2 completed iterations"):
        run_training(replace(config, num_iterations=1), folder, resumed=True)
