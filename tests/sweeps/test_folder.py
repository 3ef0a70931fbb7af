"""The folder of a sweep: lookup by arguments, exclusive creation, rows of jobs, and the table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ippo_cli.config.errors import ConfigError, ResumeError
from ippo_cli.sweeps.folder import (
    JobRow,
    copy_run_result,
    create_sweep_file,
    distinct_overrides,
    find_sweep,
    mark_running,
    read_rows,
    reserve_sweep_folder,
    set_state,
    sweep_table,
    update_row,
)


def made(folder: Path, *arguments: str) -> Path:
    folder.mkdir(parents=True)
    create_sweep_file(folder, arguments, [JobRow(1, ["seed=1"], "1"), JobRow(2, ["seed=2"], "2")])
    return folder


def test_newest_sweep_found_in_any_argument_order(tmp_path: Path) -> None:
    made(tmp_path / "multirun-1", "seed=1,2", "algorithm=ppo")
    newest = made(tmp_path / "multirun-2", "seed=1,2", "algorithm=ppo")
    made(tmp_path / "multirun-3", "seed=1,2,3", "algorithm=ppo")
    (tmp_path / "multirun-4").mkdir()
    (tmp_path / "multirun-4" / "sweep.json").write_text("{")
    beside = tmp_path / "multirun-5"
    assert find_sweep(beside, ["algorithm=ppo", "seed=1,2"]) == newest
    assert find_sweep(beside, ["algorithm=ppo", "seed=2,1"]) is None


def test_launcher_arguments_ignored_in_lookup(tmp_path: Path) -> None:
    folder = made(tmp_path / "multirun-1", "seed=1,2")
    assert find_sweep(tmp_path / "x", ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", "seed=1,2"]) == folder


def test_order_of_repeated_key_matters(tmp_path: Path) -> None:
    made(tmp_path / "multirun-1", "seed=1", "seed=2")
    assert find_sweep(tmp_path / "x", ["seed=2", "seed=1"]) is None


def test_sweeps_of_same_second_get_distinct_folders(tmp_path: Path) -> None:
    first, second = (reserve_sweep_folder(tmp_path / "multirun-1", chosen=False) for _ in range(2))
    assert first != second
    assert first.is_dir()
    assert second.is_dir()


def test_chosen_folder_must_be_empty(tmp_path: Path) -> None:
    chosen = tmp_path / "mine"
    assert reserve_sweep_folder(chosen, chosen=True) == reserve_sweep_folder(chosen, chosen=True) == chosen
    create_sweep_file(chosen, [], [])
    with pytest.raises(ConfigError, match="is not empty; resume its sweep with resume=auto"):
        reserve_sweep_folder(chosen, chosen=True)


def test_update_row_changes_or_adds_row(tmp_path: Path) -> None:
    folder = made(tmp_path / "sweep")
    with update_row(folder, 2) as row:
        mark_running(row)
    with update_row(folder, 7) as row:
        row.folder = "7"
        set_state(row, "failed", 12, "why")
    first, second, third = read_rows(folder)
    assert (first.state, second.state, third.state) == ("waiting", "running", "failed")
    assert second.pid is not None
    assert (third.job, third.exit_code, third.error, third.pid) == (7, 12, "why", None)


def test_row_copies_score_and_time_of_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {
        name: {"iteration": 1, "score": score, "more": 0}
        for name, score in (("first", 0.25), ("best", 0.75), ("last", 0.5))
    }
    (tmp_path / "run.json").write_text(json.dumps({"state": "done", "evaluation": entries, "wall_seconds": 3.5}))
    row = JobRow(1, [], "")
    copy_run_result(row, tmp_path)
    assert row.wall_seconds == 3.5
    assert row.score["best"] == {"iteration": 1, "score": 0.75}
    monkeypatch.chdir(tmp_path)  # a long path would leave no space for the scores
    assert "0.250 -> 0.750, 0.500" in sweep_table(Path(), [row])
    row.score = {name: {"iteration": 0, "score": None} for name in ("first", "last")}
    assert "- -> -, -" in sweep_table(Path(), [row]), "scores that are no numbers"


def test_distinct_overrides() -> None:
    rows = [JobRow(1, ["a=1", "b=2"], "1"), JobRow(2, ["a=1", "b=3"], "2")]
    assert distinct_overrides(rows) == {1: "b=2", 2: "b=3"}
    assert distinct_overrides(rows[:1]) == {1: "a=1 b=2"}


def test_table_wraps_long_overrides(tmp_path: Path) -> None:
    paths = [f"task.train=/a/{'long/' * 40}{name}.jsonl" for name in "ab"]
    lines = sweep_table(
        tmp_path, [JobRow(job, [path, "x=1"], str(job)) for job, path in enumerate(paths, 1)]
    ).splitlines()
    assert max(map(len, lines)) <= 100
    assert "folder" in lines[0]
    assert sum("waiting" in line for line in lines) == 2
    column = lines[0].index("overrides")
    width = lines[0].index("state") - column
    assert paths[0] in "".join(line[column : column + width].strip() for line in lines[1:])


def test_invalid_row_error_names_file(tmp_path: Path) -> None:
    folder = made(tmp_path / "sweep")
    (folder / "sweep.json").write_text(json.dumps({"arguments": [], "jobs": [{"nope": 1}]}))
    with pytest.raises(ResumeError, match=r"sweep.json cannot be read"):
        read_rows(folder)
