"""`tracker=wandb` with W&B offline: recorded data, and the cost of an unreachable server."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wandb", reason="needs the extra `wandb`")

from wandb.proto import wandb_internal_pb2 as messages

from ippo_cli.compose.load import load_config
from ippo_cli.reporting.run_log import RunLog, RunState
from ippo_cli.reporting.trackers.build import plain_settings

CANARY = "canary-5e1c-71f3"
TURN = {"agent": "low", "step": 0, "observation": "cab", "response": "abc", "cut": False, "score": 1.0}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def begun(folder: Path, *overrides: str) -> RunLog:
    """A run in this folder that logs to W&B."""
    folder.mkdir(parents=True, exist_ok=True)
    config = load_config(["tracker=wandb", f"output_dir={folder.parents[1]}", "tracker.tensorboard=false", *overrides])
    return RunLog(folder, config.tracker, RunState(), plain_settings(config))


def records(file: Path) -> Iterator[Any]:
    """The records of a `.wandb` file: 7 header bytes, then chunks of checksum, length, type, in blocks of 32 KiB."""
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 2**15 - at % 2**15) < 7:
            at += left
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last chunk
            record = messages.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def recorded(folder: Path) -> list[list[Any]]:
    """The records of each process of a run."""
    return [list(records(file)) for file in sorted(folder.glob("wandb/offline-run-*/*.wandb"))]


def rows_of(there: list[Any]) -> list[dict[str, Any]]:
    """The rows of a history, without W&B's own fields."""
    history = [record.history for record in there if record.WhichOneof("record_type") == "history"]
    rows = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in row.item} for row in history
    ]
    return [{name: value for name, value in row.items() if not name.startswith("_")} for row in rows]


def test_rows_settings_samples_and_state_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIT_API_KEY", CANARY)
    monkeypatch.setenv("WANDB_API_KEY", "canary" + 34 * "0")
    folder = tmp_path / "default" / "20250101-000000-aaaaaa"
    run = begun(folder, "tracker.tags=[first]", "rollout.stop_strings=['${oc.env:PIT_API_KEY}']")
    for iteration in (0, 1):
        run.log_row({"iteration": iteration, "eval/sampled/score": 0.5 + iteration, "time/iteration": math.nan})
    run.log_samples("train_00000001", [{"index": 3, "turns": [TURN | {"response": CANARY}]}])
    run.finish("done")
    [there] = recorded(folder)
    kinds = [record.WhichOneof("record_type") for record in there]
    begin = next(record.run for record in there if record.WhichOneof("record_type") == "run")
    assert (begin.project, begin.run_group, begin.display_name) == ("ippo-cli", "default", folder.name)
    assert list(begin.tags) == ["first"]
    shown = {item.key: json.loads(item.value_json) for item in begin.config.update}
    assert shown["actor"]["learning_rate"] == 0.00035
    assert shown["rollout"]["stop_strings"] == ["${oc.env:PIT_API_KEY}"]
    first, second, samples = rows_of(there)
    assert (first, second) == (
        {"iteration": 0, "eval/sampled/score": 0.5},
        {"iteration": 1, "eval/sampled/score": 1.5},
    ), "what is not finite is left out"
    assert samples["iteration"] == 1
    assert any(name.startswith("samples/train") for name in samples)
    [table] = folder.glob("wandb/offline-run-*/files/media/table/samples/*.json")
    assert json.loads(table.read_text())["data"] == [[3, "low", 0, "cab", "${oc.env:PIT_API_KEY}", 1.0, False]]
    metrics = [record.metric for record in there if record.WhichOneof("record_type") == "metric"]
    assert {(metric.glob_name, metric.step_metric) for metric in metrics} >= {("*", "iteration")}
    assert kinds.index("exit") > 0
    assert next(record.exit.exit_code for record in there if record.WhichOneof("record_type") == "exit") == 0
    assert not (tmp_path / "home").exists(), "all files are in the run's folder"
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "samples"]
    assert not [path for path in files if b"canary" in path.read_bytes()]


def test_resumed_run_is_the_same_run(tmp_path: Path, tracking: Callable[[], list[int]]) -> None:
    folder = tmp_path / "default" / "20250101-000000-aaaaaa"
    for iterations, state in (((1, 2), "preempted"), ((2, 3), "failed")):
        run = begun(folder)
        for process in with_service(tracking):  # as a scheduler that signals every process of a job
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
                os.kill(process, number)
        for iteration in iterations:
            run.log_row({"iteration": iteration})
        run.finish(state)
        time.sleep(1 if state == "preempted" else 0)  # the name of its folder has a resolution of one second
    before, after = recorded(folder)
    assert [row["iteration"] for row in rows_of(before) + rows_of(after)] == [1, 2, 2, 3]
    ids = {record.run.run_id for record in before + after if record.WhichOneof("record_type") == "run"}
    assert ids == {(folder / "tracker_id").read_text().strip()}
    codes = [record.exit.exit_code for record in before + after if record.WhichOneof("record_type") == "exit"]
    assert codes == [75, 1]
    assert "preempting" in [record.WhichOneof("record_type") for record in before]


def with_service(tracking: Callable[[], list[int]]) -> list[int]:
    """The child process, and W&B's service once it runs."""
    end = time.monotonic() + 20
    while len(there := tracking()) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    assert len(there) > 1
    return there


def test_sweep_jobs_are_separate_runs_in_one_group(tmp_path: Path) -> None:
    for number in "12":
        folder = tmp_path / "multirun-20250101-000000" / number
        begun(folder, "name=mine").finish("done")
        [there] = recorded(folder)
        begin = next(record.run for record in there if record.WhichOneof("record_type") == "run")
        assert begin.run_group == "multirun-20250101-000000"
        assert begin.display_name == f"multirun-20250101-000000/{number}"


@pytest.mark.parametrize("absent", [False, True], ids=["silent", "absent"])
def test_unreachable_server_delays_only_the_end(
    absent: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tracking: Callable[[], list[int]],
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", 40 * "0")
    with socket.create_server(("127.0.0.1", 0)) as listening:  # accepts connections, never replies
        port = listening.getsockname()[1]
        if absent:
            listening.close()
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        run = begun(tmp_path / "default" / "a", "tracker.finish_timeout_s=2")
        processes = tracking()
        seconds = []
        for iteration in range(100):
            began = time.perf_counter()
            run.log_row({"iteration": iteration})
            seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
        run.finish("done")
        assert time.perf_counter() - began < 4
    assert sorted(seconds)[50] < 0.005
    assert not [process for process in processes if Path(f"/proc/{process}").exists()]
    assert "has missed 100 of 100 rows" in capsys.readouterr().out


def test_missing_api_key_warns_with_offline_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    folder = tmp_path / "default" / "a"
    run = begun(folder)
    for iteration in (0, 1):
        run.log_row({"iteration": iteration})
    run.finish("done")
    [there] = recorded(folder)
    assert [row["iteration"] for row in rows_of(there)] == [0, 1]
    [output] = capsys.readouterr().out.splitlines()
    assert output.startswith("warning: tracker=wandb cannot be reached (")
    assert output.endswith(f"rows are written to {folder}/wandb, upload them with wandb sync; training continues")
