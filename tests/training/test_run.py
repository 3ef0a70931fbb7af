"""What a run writes about itself, over several processes too."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ippo_cli.config.load import load_config
from ippo_cli.training.run import Run, RunState, state_before


@pytest.fixture
def tracker():
    return replace(load_config().tracker, tensorboard=False)


def test_seconds_of_earlier_processes_count(tmp_path: Path, tracker) -> None:
    run = Run(tmp_path, tracker, RunState())
    run.state.wall_seconds = 100.0  # what a checkpoint says
    run.log({"iteration": 3})
    said = json.loads((tmp_path / "run.json").read_text())
    assert 100.0 <= said["wall_seconds"] < 110.0
    assert said["iterations"] == 3
    again = Run(tmp_path, tracker, state_before(tmp_path))
    again.finish("done")
    assert json.loads((tmp_path / "run.json").read_text())["wall_seconds"] >= said["wall_seconds"]


def test_a_run_that_goes_on_forgets_nothing_before_its_checkpoint_is_read(tmp_path: Path, tracker) -> None:
    run = Run(tmp_path, tracker, RunState())
    run.evaluated(0, "sampled/score", {"sampled/score": 0.25})
    run.finish("failed", "disk full")
    known = state_before(tmp_path)
    assert (known.state, known.error) == ("failed", None)
    assert known.evaluation["best"]["score"] == 0.25
    assert state_before(tmp_path / "nowhere") == RunState()


def test_curves_of_abandoned_iterations_are_purged(tmp_path: Path, tracker) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    drawn = replace(tracker, tensorboard=True)
    for iterations in ((1, 2, 3), (2, 3)):  # stopped after 3, resumed from a checkpoint of 1
        run = Run(tmp_path, drawn, RunState())
        for iteration in iterations:
            run.log({"iteration": iteration, "time/iteration": 10.0 * len(iterations) + iteration})
        run.finish("done")
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("time/iteration")] == [(1, 31), (2, 22), (3, 23)]
