"""`sweep=population`: the members of each generation, their values and their parents."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import PopulationSweepConfig, SweepKind
from ippo_cli.sweeps.folder import JobRow
from ippo_cli.sweeps.population import PopulationSearch, copy_parent_run, mutate_values, tournament_winner
from ippo_cli.sweeps.space import Dimension

CONFIG = PopulationSweepConfig(
    kind=SweepKind.population,
    max_parallel=1,
    seed=0,
    space={},
    members=4,
    generations=3,
    tournament_size=2,
    shrink=0.8,
    grow=1.2,
)
RATE = Dimension(key="actor.learning_rate", low=1e-5, high=1e-2, log=True)
BATCH = Dimension(key="algorithm.mini_batch_size", choices=("16", "32", "64"))


def done(folder: Path, row: JobRow, score: float) -> JobRow:
    """Write the files of a completed member with this score; return its row."""
    place = folder / str(row.job)
    (place / "checkpoints" / "step_00000002").mkdir(parents=True)
    (place / "checkpoints" / "step_00000002" / "manifest.json").write_text("{}")
    (place / "config.yaml").write_text("task: {primary_metric: sampled/score}")
    (place / "metrics.jsonl").write_text(json.dumps({"iteration": 2, "eval/sampled/score": score}) + "\n")
    (place / "run.json").write_text(json.dumps({"state": "done", "iterations": 2}))
    (place / "run.lock").touch()
    return replace(row, folder=str(row.job), state="done")


def search() -> PopulationSearch:
    return PopulationSearch(CONFIG, [RATE, BATCH], ["seed=3"], ["critic"])


def test_next_generation_keeps_best_and_mutates_others(tmp_path: Path) -> None:
    first = search().new_rows(tmp_path, [])
    assert [(row.job, row.generation, row.member, row.parent) for row in first] == [
        (job, 1, job, None) for job in range(1, 5)
    ]
    assert len({tuple(row.overrides) for row in first}) == 4
    rows = [done(tmp_path, row, score) for row, score in zip(first, (0.1, 0.7, 0.3, 0.2), strict=True)]
    second = search().new_rows(tmp_path, rows)
    assert [(row.job, row.generation, row.member) for row in second] == [(4 + n, 2, n) for n in range(1, 5)]
    assert (second[0].parent, second[0].overrides) == (2, rows[1].overrides)
    for row in second[1:]:
        assert row.parent != 1, "the worst of four members wins no tournament of two"
        parent = rows[(row.parent or 0) - 1]
        changed = [pair for pair in zip(parent.overrides, row.overrides, strict=True) if pair[0] != pair[1]]
        assert len(changed) == 1
        key, _, value = changed[0][1].partition("=")
        if key == RATE.key:
            ratio = float(value) / float(changed[0][0].partition("=")[2])
            assert min(abs(ratio - 0.8), abs(ratio - 1.2)) < 0.01
    assert search().new_rows(tmp_path, rows) == second, "after a kill the same members are generated"


def test_generation_waits_for_all_members(tmp_path: Path) -> None:
    first = search().new_rows(tmp_path, [])
    rows = [done(tmp_path, row, 0.5) for row in first[:3]] + [first[3]]
    assert search().new_rows(tmp_path, rows) == []
    rows[3] = replace(first[3], state="failed")
    second = search().new_rows(tmp_path, rows)
    assert 4 not in {row.parent for row in second}, "a failed member is not a parent"
    assert search().new_rows(tmp_path, [*rows, *second]) == []
    assert search().unfinished_rows([*rows, *second]) == second


def test_no_next_generation_if_all_fail(tmp_path: Path) -> None:
    rows = [replace(row, state="failed") for row in search().new_rows(tmp_path, [])]
    assert search().new_rows(tmp_path, rows) == []


def test_mutation_at_end_of_range_reverses() -> None:
    for seed in range(10):
        assert mutate_values([BATCH], {BATCH.key: "64"}, CONFIG, random.Random(seed)) == {BATCH.key: "32"}


def test_tournament_of_all_returns_first_best() -> None:
    assert tournament_winner([0.1, 0.5, 0.5, float("-inf")], 4, random.Random(0)) == 1


def test_copy_parent_run_keeps_parent_unchanged(tmp_path: Path) -> None:
    row = done(tmp_path, JobRow(1, ["seed=3"], "1"), 0.5)
    for name in ("verification.json", "report.html"):
        (tmp_path / "1" / name).write_text("of the parent")
    copy_parent_run(tmp_path / "1", tmp_path / "2")
    child = tmp_path / "2"
    assert not any((child / name).exists() for name in ("verification.json", "report.html"))
    assert json.loads((child / "run.json").read_text())["state"] == "preempted"
    assert json.loads((tmp_path / row.folder / "run.json").read_text())["state"] == "done"
    assert not (child / "run.lock").exists()
    with (child / "metrics.jsonl").open("a") as file:
        file.write("more\n")
    assert "more" not in (tmp_path / "1" / "metrics.jsonl").read_text()
    (child / "mine").touch()
    copy_parent_run(tmp_path / "1", child)
    assert (child / "mine").exists(), "a folder with a checkpoint is kept"


@pytest.mark.parametrize("key", ["seed", "critic", "num_iterations", "rollout.buffer_size", "actor.model", "task.kind"])
def test_unchangeable_key_rejected(key: str) -> None:
    with pytest.raises(ConfigError, match="cannot change when a run is resumed"):
        PopulationSearch(CONFIG, [replace(RATE, key=key)], [], ["critic"])
