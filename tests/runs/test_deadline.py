"""Stopping before a time limit, with time to finish an update and to save."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from small import open_trainer

from ippo_cli.config.errors import Preempted
from ippo_cli.runs import deadline
from ippo_cli.runs.deadline import MARGIN_S, TimeLimit
from ippo_cli.runs.folder import list_checkpoints
from ippo_cli.training import build_trainer


def test_deadline_allows_update_and_save() -> None:
    limit = TimeLimit(1000.0, save_bytes=0.0)
    assert limit.deadline == 1000.0 - MARGIN_S
    limit.record_save(20.0)
    limit.record_save(4.0)
    limit.record_iteration({"time/update": 40.0, "time/iteration": 100.0})
    limit.record_iteration({"time/update": 8.0, "time/iteration": 9.0})
    assert limit.deadline == 1000.0 - MARGIN_S - 1.5 * 20.0 - 1.25 * 40.0


def test_resumed_run_uses_earlier_durations() -> None:
    known = [{"time/update": 40.0, "time/iteration": 100.0, "time/checkpoint": 20.0}]
    assert TimeLimit(1000.0, 0.0, known).deadline == 1000.0 - MARGIN_S - 30.0 - 50.0


def test_no_iteration_starts_if_it_would_be_aborted() -> None:
    limit = TimeLimit(time.time() + 100.0, save_bytes=0.0)
    limit.record_iteration({"time/update": 10.0, "time/iteration": 50.0})
    assert not limit.next_iteration_exceeds_limit()
    limit.record_iteration({"time/update": 10.0, "time/iteration": 90.0})
    assert limit.next_iteration_exceeds_limit()
    assert not TimeLimit(None, save_bytes=1e12).next_iteration_exceeds_limit()


@pytest.mark.slow
def test_run_saves_before_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "MARGIN_S", 1.0)
    endless = ("num_iterations=100000", "checkpoint.every=0", "evaluation.every=0", "checkpoint.save_deadline=1000")
    with open_trainer(tmp_path, *endless) as trainer:
        assert trainer.time_limit.limit == build_trainer.PROCESS_STARTED_AT + 1000
        end = time.time() + 3.0
        trainer.time_limit.limit = end
        with pytest.raises(Preempted, match="the time limit is near; saved after iteration"):
            trainer.train()
        assert time.time() < end
        folder, done = trainer.run.folder, trainer.state.progress.iteration
    assert list_checkpoints(folder / "checkpoints")[-1].name == f"step_{done:08d}"
    assert done > 0
