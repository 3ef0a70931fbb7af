"""A run's folder: creation, atomic files, and locks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ippo_cli.config.errors import ResumeError, StorageError
from ippo_cli.runs.folder import (
    activate_resumed_config,
    check_world_size,
    config_file,
    is_run_locked,
    lock_folder,
    read_owner_job,
    read_run_state,
    reserve_folder,
    run_folders,
    write_atomically,
    write_start_files,
)


def test_runs_of_the_same_second_get_different_folders(tmp_path: Path) -> None:
    made = [reserve_folder(tmp_path / "outputs" / "name") for _ in range(5)]
    assert len(set(made)) == 5
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}", folder.name) and folder.is_dir() for folder in made)
    assert all(folder.is_absolute() for folder in made)


def test_root_that_is_a_file_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("")
    with pytest.raises(StorageError, match="output_dir") as raised:
        reserve_folder(tmp_path / "outputs" / "name")
    assert raised.value.exit_code == 13


def test_start_files_describe_the_run(tmp_path: Path) -> None:
    write_start_files(
        tmp_path,
        "seed: 1\n",
        ["seed=1", "task.agents.low.template='a b'"],
        ["ippo-train", "seed=1", "a b"],
        resumed=False,
    )
    assert (tmp_path / "config.yaml").read_text() == "seed: 1\n"
    assert json.loads((tmp_path / "overrides.json").read_text()) == ["seed=1", "task.agents.low.template='a b'"]
    write_start_files(tmp_path, "seed: 2\n", ["seed=1"], ["ippo-train", "resume=auto"], resumed=True)
    assert (tmp_path / "config.yaml").read_text() == "seed: 1\n", "not before the checkpoint has been loaded"
    assert json.loads((tmp_path / "overrides.json").read_text())[1:] == ["task.agents.low.template='a b'"]
    assert config_file(tmp_path, resumed=True).read_text() == "seed: 2\n"
    activate_resumed_config(tmp_path)
    assert json.loads((tmp_path / "overrides.json").read_text()) == ["seed=1"]
    assert (tmp_path / "command.txt").read_text() == "ippo-train seed=1 'a b'\nippo-train resume=auto\n"
    assert (tmp_path / "config.yaml").read_text() == "seed: 2\n"
    packages = json.loads((tmp_path / "env.json").read_text())["packages"]
    assert packages["torch"]
    files = ["command.txt", "config.yaml", "env.json", "overrides.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == files


def test_job_file_keeps_the_first_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_owner_job(tmp_path) == (None, [])
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    write_start_files(tmp_path, "seed: 1\n", ["seed=1"], ["ippo-train"], resumed=False)
    monkeypatch.setenv("SLURM_JOB_ID", "8")
    write_start_files(tmp_path, "seed: 1\n", ["seed=1", "num_iterations=9"], ["ippo-train"], resumed=True)
    assert read_owner_job(tmp_path) == ("slurm-7", ["seed=1"])
    (tmp_path / "job.json").write_text("[]")
    with pytest.raises(ResumeError, match=r"job\.json cannot be read"):
        read_owner_job(tmp_path)


def test_files_are_replaced_atomically(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a.json", "one")
    write_atomically(tmp_path / "a.json", "zwei é drei")
    assert (tmp_path / "a.json").read_text() == "zwei é drei"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_lock_is_exclusive_and_freed_on_exit(tmp_path: Path) -> None:
    assert not is_run_locked(tmp_path)
    code = (
        "import sys; from pathlib import Path; from ippo_cli.runs.folder import lock_folder\n"
        f"held = lock_folder(Path({str(tmp_path)!r})); print('held', flush=True); sys.stdin.read()"
    )
    source = str(Path(sys.modules[lock_folder.__module__].__file__ or "").parents[2])
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"PYTHONPATH": source}
    )
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    assert is_run_locked(tmp_path)
    with pytest.raises(ResumeError, match="in use by another process") as raised:
        lock_folder(tmp_path)
    assert raised.value.exit_code == 14
    other.kill()
    other.communicate()
    assert not is_run_locked(tmp_path)
    with lock_folder(tmp_path):
        pass


def test_runs_are_listed_newest_first(tmp_path: Path) -> None:
    for name in ("20250101-000000-ffffff", "20250301-000000-aaaaaa", "20250201-000000-bbbbbb"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text('{"state": "done"}')
    (tmp_path / "20260101-000000-aaaaaa").mkdir()
    assert [path.name[:8] for path in run_folders(tmp_path)] == ["20250301", "20250201", "20250101"]
    assert run_folders(tmp_path / "nowhere") == []


@pytest.mark.parametrize("text", [None, "", "{", "[]", "{}", "3"])
def test_unreadable_state_is_rejected(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(ResumeError, match=re.escape(str(tmp_path))):
        read_run_state(tmp_path)
    (tmp_path / "run.json").write_text('{"state": "preempted"}')
    assert read_run_state(tmp_path) == "preempted"


def test_lock_check_does_not_lock(tmp_path: Path) -> None:
    with lock_folder(tmp_path, shared=True):  # another rank checks at the same time
        assert not is_run_locked(tmp_path)
    with lock_folder(tmp_path):
        assert is_run_locked(tmp_path)


def test_other_world_size_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"world_size": 2}')
    check_world_size(tmp_path, 2)
    with pytest.raises(ResumeError, match=r"by 2 processes and there are 1 now; set launch\.processes=2"):
        check_world_size(tmp_path, 1)
