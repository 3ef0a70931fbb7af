"""Searches with real training: a population and Optuna, two jobs in parallel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from small import SMALL, final_weights, rows

SHORT = (*SMALL, "num_iterations=4", "evaluation.every=1", "evaluation.greedy=false", "checkpoint.every=0")
SPACE = "actor.learning_rate=tag(log, interval(1e-4, 3e-2))"


def trained(root: Path, *overrides: str) -> str:
    command = [sys.executable, "-m", "ippo_cli.cli.train", *SHORT, *overrides, f"output_dir={root}"]
    done = subprocess.run(
        command, cwd=root, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def jobs_of(root: Path) -> tuple[Path, list[dict[str, Any]]]:
    [file] = root.glob("default/*/sweep.json")
    return file.parent, json.loads(file.read_text())["jobs"]


def rate_of(job: dict[str, Any]) -> str:
    [rate] = [text for text in job["overrides"] if text.startswith("actor.learning_rate=")]
    return rate


@pytest.mark.slow
def test_population_elite_equals_single_run(tmp_path: Path) -> None:
    search = ("sweep=population", "sweep.members=2", "sweep.generations=2", "sweep.max_parallel=2", SPACE)
    trained(tmp_path, "-m", *search)
    sweep, jobs = jobs_of(tmp_path)
    assert [(job["generation"], job["state"]) for job in jobs] == [(1, "done")] * 2 + [(2, "done")] * 2
    parents = {job["parent"] for job in jobs[2:]}
    assert parents <= {1, 2}
    for job in jobs[2:]:
        own, before = rows(sweep / str(job["job"])), rows(sweep / str(job["parent"]))
        assert [row["iteration"] for row in own] == [0, 1, 2, 3, 4]
        assert own[:3] == before[:3]
    drawn = [rate_of(job) for job in jobs]
    elite = next(job for job in jobs[2:] if rate_of(job) == drawn[job["parent"] - 1])
    assert sum(rate_of(job) == drawn[job["parent"] - 1] for job in jobs[2:]) == 1, (
        "the other member has a changed value"
    )
    (tmp_path / "alone").mkdir()
    trained(tmp_path / "alone", rate_of(elite))
    [alone] = (path.parent for path in (tmp_path / "alone").glob("default/*/metrics.jsonl"))
    assert rows(sweep / str(elite["job"])) == rows(alone)
    one, other = final_weights(sweep / str(elite["job"])), final_weights(alone)
    assert all(bool((one[name] == value).all()) for name, value in other.items())


@pytest.mark.slow
def test_optuna_search_trains_all_proposals(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    search = ("sweep=optuna", "sweep.trials=4", "sweep.startup_trials=2", "sweep.max_parallel=2", SPACE)
    output = trained(tmp_path, "-m", *search)
    sweep, jobs = jobs_of(tmp_path)
    assert len(jobs) == 4
    assert {job["state"] for job in jobs} <= {"done", "pruned"}
    assert [job["state"] for job in jobs[:2]] == ["done", "done"]
    drawn = [rate_of(job) for job in jobs]
    assert len(set(drawn)) == 4
    scores = {
        job["job"]: rows(sweep / str(job["job"]))[-1]["eval/sampled/score"] for job in jobs if job["state"] == "done"
    }
    best = max(scores, key=lambda number: scores[number])
    assert drawn[best - 1] in output
