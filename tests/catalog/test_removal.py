"""Removal of runs: only what the plan lists, never a run in use, never files behind links."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_folders import set_age, write_run

from ippo_cli.catalog.removal import REMOVAL_PREFIX, plan_cleaning, plan_removals, remove
from ippo_cli.config.errors import ConfigError, ResumeError
from ippo_cli.runs.folder import START_LOCK, lock_folder


def reasons(root: Path, days: float = 7.0) -> dict[Path, str]:
    removals, _ = plan_cleaning([root], days)
    return {removal.folder: removal.reason for removal in removals}


def test_remove_a_run_and_keep_what_its_links_point_to(tmp_path: Path) -> None:
    run, other = write_run(tmp_path, "a", checkpoints=(2,)), tmp_path / "data"
    other.mkdir()
    (other / "rows.jsonl").write_text("{}")
    (run / "data").symlink_to(other)
    (run / "row").symlink_to(other / "rows.jsonl")
    (removal,) = plan_removals([run])
    assert 1000 < removal.size < 5000
    remove(removal)
    assert not run.exists()
    assert list(run.parent.iterdir()) == []
    assert (other / "rows.jsonl").read_text() == "{}"


def test_removal_refuses_runs_in_use(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", state="running")
    with lock_folder(run), pytest.raises(ConfigError, match="is in use"):
        plan_removals([run])
    with lock_folder(run, name=START_LOCK), pytest.raises(ConfigError, match="is in use"):
        plan_removals([run])
    (removal,) = plan_removals([run])
    with lock_folder(run), pytest.raises(ResumeError, match="in use"):
        remove(removal)  # it was resumed after the plan
    assert (run / "run.json").is_file()


def test_removal_refuses_links_and_other_folders(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", checkpoints=(2,))
    (tmp_path / "link").symlink_to(run)
    with pytest.raises(ConfigError, match="is a link"):
        plan_removals([tmp_path / "link"])
    for folder in (tmp_path, run.parent, run / "checkpoints", tmp_path / "missing"):
        with pytest.raises(ConfigError, match="is not a run's folder"):
            plan_removals([folder])


def test_a_run_that_contains_another_one_is_kept(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", state="failed", age_days=9)
    inner = write_run(run / "outputs", "b")
    with pytest.raises(ConfigError, match=f"contains another run, {inner}"):
        plan_removals([run])
    removals, retained = plan_cleaning([tmp_path], 7)
    assert removals == []
    assert [removal.reason for removal in retained] == ["contains another run"]


def test_a_run_is_planned_once_under_two_names(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a")
    assert len(plan_removals([run, run.parent / ".." / "a" / run.name])) == 1


def test_removal_names_runs_that_need_the_weights(tmp_path: Path) -> None:
    run, other = write_run(tmp_path, "a", checkpoints=(2,)), write_run(tmp_path, "b")
    (other / "initial").mkdir()
    model = run / "checkpoints" / "step_00000002" / "low"
    (other / "initial" / "low.json").write_text(json.dumps({"model": str(model), "commit": None, "sha256": {}}))
    (run / "initial").mkdir()
    (run / "initial" / "low.json").write_text(json.dumps({"model": str(run / "initial" / "low")}))
    assert [removal.reason for removal in plan_removals([run, other])] == [
        f"done; {other} started from its weights and needs them to resume",
        "done",
    ]


def test_clean_keeps_what_can_be_resumed(tmp_path: Path) -> None:
    failed = write_run(tmp_path, "failed", state="failed", age_days=9)
    interrupted = write_run(tmp_path, "interrupted", state="running", age_days=9)
    resumable = write_run(tmp_path, "resumable", state="failed", checkpoints=(2,), age_days=9)
    recent = write_run(tmp_path, "recent", state="failed", age_days=1)
    for state in ("done", "preempted"):
        write_run(tmp_path, state, state=state, age_days=9)
    assert set(reasons(tmp_path)) == {failed, interrupted}
    _, retained = plan_cleaning([tmp_path], 7)
    assert {removal.folder: removal.reason for removal in retained} == {
        resumable: "can be resumed from 1 checkpoint",
        recent: "changed 1 d ago",
    }
    with lock_folder(interrupted):
        assert set(reasons(tmp_path)) == {failed}
    assert set(reasons(tmp_path, 0.5)) == {failed, interrupted, recent}


def test_clean_removes_unfinished_checkpoints(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", checkpoints=(2,), age_days=9)
    partial, outside = run / "checkpoints" / "step_00000003.tmp", tmp_path / "outside"
    (partial / "low").mkdir(parents=True)
    outside.mkdir()
    (run / "checkpoints" / "step_00000004.tmp").symlink_to(outside)
    assert reasons(tmp_path) == {}, "it has just been written"
    set_age(partial, 9)
    assert reasons(tmp_path) == {partial: "an unfinished checkpoint"}
    with lock_folder(run):
        assert reasons(tmp_path) == {}, "the run may be saving it"
    (removal,), _ = plan_cleaning([tmp_path], 7)
    remove(removal)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step_00000002", "step_00000004.tmp"]


def test_clean_finishes_an_interrupted_removal(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", age_days=9)
    left = run.rename(run.with_name(REMOVAL_PREFIX + run.name))
    assert reasons(tmp_path) == {left: "an interrupted removal"}
    assert len(plan_cleaning([tmp_path, tmp_path / "a"], 7)[0]) == 1
    (removal,), _ = plan_cleaning([tmp_path], 7)
    remove(removal)
    assert not left.exists()


def test_clean_keeps_a_run_with_an_unreadable_state(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", state="failed")
    (run / "run.json").write_text("{")
    set_age(run, 9)
    removals, retained = plan_cleaning([tmp_path], 7)
    assert removals == []
    assert [removal.reason for removal in retained] == ["run.json cannot be read"]
