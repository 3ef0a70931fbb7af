"""`tracker=trackio` with local files: recorded data, resumes, combinations and unreachable servers."""

from __future__ import annotations

import json
import math
import os
import socket
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trackio", reason="needs the extra `trackio`")

from ippo_cli.compose.load import load_config
from ippo_cli.reporting.run_log import RunLog, RunState
from ippo_cli.reporting.trackers.build import plain_settings

CANARY = "canary-5e1c-71f3"
TURN = {"agent": "low", "step": 0, "observation": "cab", "response": "abc", "cut": False, "score": 1.0}


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith(("TRACKIO_", "WANDB_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def begun(folder: Path, *overrides: str) -> RunLog:
    """A run in this folder that logs to Trackio."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = ["tracker=trackio", f"output_dir={folder.parents[1]}", "tracker.tensorboard=false"]
    config = load_config([*keys, *overrides])
    return RunLog(folder, config.tracker, RunState(), plain_settings(config))


def read_rows(root: Path, table: str, column: str) -> list[tuple[Any, ...]]:
    """The runs of a project's table, with their values."""
    with sqlite3.connect(root / "trackio" / "ippo-cli.db") as database:
        found = database.execute(f"select run_name, run_id, {column} from {table} order by id").fetchall()
    return [(name, number, *map(decode, values)) for name, number, *values in found]


def decode(value: Any) -> Any:
    return json.loads(value) if isinstance(value, (bytes, str)) else value


def test_rows_settings_and_samples_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIT_API_KEY", CANARY)
    folder = tmp_path / "default" / "20250101-000000-aaaaaa"
    run = begun(folder, "rollout.stop_strings=['${oc.env:PIT_API_KEY}']")
    for iteration in (0, 1):
        run.log_row({"iteration": iteration, "eval/sampled/score": 0.5 + iteration, "time/iteration": math.nan})
    tokens = {"text": [CANARY[:5], CANARY[5:]]}
    run.log_samples("train_00000001", [{"index": 3, "turns": [TURN | {"response": f"\x1b{CANARY}", "tokens": tokens}]}])
    run.finish("done")
    rows = read_rows(tmp_path, "metrics", "step, metrics")
    assert [(name, step, row) for name, _, step, row in rows[:2]] == [
        (folder.name, 0, {"eval/sampled/score": 0.5}),
        (folder.name, 1, {"eval/sampled/score": 1.5}),
    ], "what is not finite is left out"
    table = rows[2][3]["samples/train"]
    response = "\\x1b${oc.env:PIT_API_KEY}"
    assert table["_value"] == [
        {
            "index": 3,
            "agent": "low",
            "step": 0,
            "observation": "cab",
            "response": response,
            "score": 1.0,
            "cut": False,
        }
    ]
    [(_, _, config)] = read_rows(tmp_path, "configs", "config")
    assert config["actor"]["learning_rate"] == 0.00035
    assert config["_Group"] == "default"
    assert not (tmp_path / "home").exists(), "all files are in output_dir"
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "samples"]
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]
    assert run.state.warnings == {}


def test_resumed_run_is_the_same_run(tmp_path: Path) -> None:
    folder = tmp_path / "default" / "20250101-000000-aaaaaa"
    for iterations in ((1, 2), (2, 3)):
        run = begun(folder, "tracker.run_name=mine")
        for iteration in iterations:
            run.log_row({"iteration": iteration, "time/iteration": float(iteration)})
        run.finish("preempted")
    begun(tmp_path / "default" / "b", "tracker.run_name=mine").finish("done")
    rows = read_rows(tmp_path, "metrics", "step, metrics")
    assert [(step, row) for _, _, step, row in rows] == [
        (step, {"time/iteration": float(step)}) for step in (1, 2, 2, 3)
    ]
    assert len({number for _, number, *_ in rows}) == 1
    assert rows[0][0] == f"mine {(folder / 'tracker_id').read_text()[:6]}"


def test_wandb_and_trackio_receive_the_same_rows(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    folder = tmp_path / "default" / "a"
    run = begun(folder, "tracker=wandb_trackio", "tracker.project=ippo-cli")
    run.log_row({"iteration": 1, "time/iteration": 2.0})
    run.finish("done")
    [(*_, row)] = read_rows(tmp_path, "metrics", "metrics")
    assert row == {"time/iteration": 2.0}
    assert len(list(folder.glob("wandb/offline-run-*/*.wandb"))) == 1
    assert run.state.warnings == {}


def test_unreachable_server_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    monkeypatch.setenv("TRACKIO_SERVER_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("TRACKIO_WRITE_TOKEN", "word-of-mine")
    run = begun(tmp_path / "default" / "a", "tracker.finish_timeout_s=15")
    run.log_row({"iteration": 1, "time/iteration": 2.0})
    began = time.perf_counter()
    run.finish("done")
    assert time.perf_counter() - began < 20
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert lines[0].startswith("warning: tracker=trackio reports: ")
    assert "word-of-mine" not in "".join(lines)
    assert json.loads((tmp_path / "default" / "a" / "run.json").read_text())["state"] == "done"
