"""`tracker=mlflow` with MLflow on local files: recorded data, and the cost of an unreachable server."""

from __future__ import annotations

import fcntl
import json
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow", reason="needs the extra `mlflow`")

from mlflow import MlflowClient
from small import rows, stopped_and_resumed, stopping_reward

from ippo_cli.compose.load import load_config
from ippo_cli.reporting.run_log import RunLog, RunState
from ippo_cli.reporting.trackers.build import plain_settings

CANARY = "canary-5e1c-71f3"
TURN = {"agent": "low", "step": 0, "observation": "cab", "response": "abc", "cut": False, "score": 1.0}


@pytest.fixture(autouse=True)
def files_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def begun(folder: Path, *overrides: str) -> RunLog:
    """A run in this folder that logs to MLflow."""
    root = folder.parents[1]
    folder.mkdir(parents=True, exist_ok=True)
    keys = ("tracker=mlflow", f"output_dir={root}", "tracker.tensorboard=false", f"name={folder.parent.name}")
    config = load_config([*keys, *overrides])
    return RunLog(folder, config.tracker, RunState(), plain_settings(config))


def recorded(root: Path, experiment: str = "default") -> list[Any]:
    """The runs of an experiment, and the client that found them, for further requests."""
    client = MlflowClient(tracking_uri=(root / "mlruns").as_uri())
    there = client.get_experiment_by_name(experiment)
    assert there is not None
    return [client, *client.search_runs([there.experiment_id])]


def test_rows_settings_samples_and_state_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIT_API_KEY", CANARY)
    run = begun(tmp_path / "default" / "20250101-000000-aaaaaa", "rollout.stop_strings=['${oc.env:PIT_API_KEY}']")
    for iteration in (0, 1):
        run.log_row({"iteration": iteration, "eval/sampled/score/pass@4": 0.5 + iteration, "time/iteration": math.nan})
    run.log_samples("train_00000001", [{"index": 3, "turns": [TURN | {"response": CANARY, "tokens": {"text": ["a"]}}]}])
    run.log_samples("eval_00000001", [{"index": 3, "turns": []}])
    run.finish("done")
    client, there = recorded(tmp_path)
    assert there.info.run_name == "20250101-000000-aaaaaa"
    assert there.info.status == "FINISHED"
    assert there.data.tags["state"] == "done"
    assert there.data.tags["group"] == "default"
    assert there.data.params["actor.learning_rate"] == "0.00035"
    assert there.data.params["tracker.kind"] == "mlflow"
    assert there.data.params["rollout.stop_strings"] == '["${oc.env:PIT_API_KEY}"]'
    history = client.get_metric_history(there.info.run_id, "eval/sampled/score/pass_at_4")
    assert [(point.step, point.value) for point in history] == [(0, 0.5), (1, 1.5)]
    assert list(there.data.metrics) == ["eval/sampled/score/pass_at_4"], "what is not finite is left out"
    [samples] = (tmp_path / "mlruns").rglob("train_00000001.jsonl")
    assert json.loads(samples.read_text()) == {"index": 3, "turns": [TURN | {"response": "${oc.env:PIT_API_KEY}"}]}
    [table] = (tmp_path / "mlruns").rglob("train_00000001.json")
    assert json.loads(table.read_text()) == {
        "columns": ["index", "agent", "step", "observation", "response", "score", "cut"],
        "data": [[3, "low", 0, "cab", "${oc.env:PIT_API_KEY}", 1.0, False]],
    }
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "samples"]
    assert not [path for path in files if CANARY.encode() in path.read_bytes()]


def test_resumed_run_is_the_same_run_and_changes_are_tags(tmp_path: Path) -> None:
    folder = tmp_path / "default" / "20250101-000000-aaaaaa"
    for iterations, overrides in (((1, 2), ()), ((2, 3), ("num_iterations=9",))):
        run = begun(folder, *overrides)
        for iteration in iterations:
            run.log_row({"iteration": iteration, "time/iteration": float(iteration)})
        run.finish("preempted" if not overrides else "done")
    client, there = recorded(tmp_path)
    assert there.info.status == "FINISHED"
    history = client.get_metric_history(there.info.run_id, "time/iteration")
    assert [(point.step, point.value) for point in history] == [(1, 1.0), (2, 2.0), (2, 2.0), (3, 3.0)]
    assert there.data.params["num_iterations"] == "90"
    assert there.data.tags["changed.num_iterations"] == "9"


def has_open(file: Path, process: int) -> bool:
    try:
        return any(os.readlink(number) == str(file) for number in Path(f"/proc/{process}/fd").iterdir())
    except FileNotFoundError:  # the process opens and closes files in the meantime
        return False


def test_sweep_jobs_are_separate_runs_in_one_group(tmp_path: Path, tracking: Callable[[], list[int]]) -> None:
    config = load_config(["tracker=mlflow", "name=mine", f"output_dir={tmp_path}", "tracker.tensorboard=false"])
    runs, lock = [], tmp_path / ".mlruns.lock"
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for number in "12":
            folder = tmp_path / "mine" / "multirun-20250101-000000" / number
            folder.mkdir(parents=True)
            runs.append(RunLog(folder, config.tracker, RunState(), plain_settings(config)))
        end = time.monotonic() + 30
        while not all(has_open(lock, process) for process in tracking()) and time.monotonic() < end:
            time.sleep(0.1)
        assert not (tmp_path / "mlruns").exists(), "those that begin together make one experiment, one after another"
    for run in runs:
        run.finish("done")
    _, *there = recorded(tmp_path, "mine")
    assert {run.info.run_name for run in there} == {f"multirun-20250101-000000/{number}" for number in "12"}
    assert {run.data.tags["group"] for run in there} == {"multirun-20250101-000000"}


@pytest.mark.slow
def test_resumed_training_has_every_iteration_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ("tracker=mlflow", "tracker.samples_every=2", "evaluation.greedy=false")
    folder = stopped_and_resumed(tmp_path, monkeypatch, *stopping_reward(tmp_path), *keys, at_call=3)
    client, there = recorded(tmp_path)
    assert (there.info.status, there.data.tags["folder"]) == ("FINISHED", str(folder))
    written = {row["iteration"]: row for row in rows(folder)}
    for name, iterations in (("low/score/mean", (1, 2, 3, 4)), ("eval/sampled/score", (0, 2, 4))):
        points = [(point.step, point.value) for point in client.get_metric_history(there.info.run_id, name)]
        assert points == [(iteration, pytest.approx(written[iteration][name])) for iteration in iterations]
    assert "train_00000004.jsonl" in [file.name for file in (tmp_path / "mlruns").rglob("*.jsonl")]


@contextmanager
def silent_server() -> Iterator[str]:
    """An address that accepts connections but never replies."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_unresponsive_server_delays_only_the_end(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tracking: Callable[[], list[int]],
) -> None:
    with silent_server() as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        run = begun(tmp_path / "default" / "a", "tracker.finish_timeout_s=2")
        [process] = tracking()
        seconds = []
        for iteration in range(100):
            began = time.perf_counter()
            run.log_row({"iteration": iteration})
            seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
        run.finish("done")
        assert time.perf_counter() - began < 4
    assert sorted(seconds)[50] < 0.005
    assert not Path(f"/proc/{process}").exists()
    output = capsys.readouterr().out
    assert output.splitlines() == [
        "warning: tracker=mlflow has not finished within 2 s and is killed; training continues",
        "warning: tracker=mlflow has missed 100 of 100 rows, which are all in metrics.jsonl",
    ]
    assert json.loads((tmp_path / "default" / "a" / "run.json").read_text())["state"] == "done"


def test_undelivered_rows_are_counted_and_warn_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:word-of-mine@127.0.0.1:9")  # no server listens there
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run = begun(tmp_path / "default" / "a")
    for iteration in range(3):
        run.log_row({"iteration": iteration})
    run.finish("done")
    output = capsys.readouterr().out
    first, second = output.splitlines()
    assert first.startswith("warning: tracker=mlflow cannot log rows (")
    assert second == "warning: tracker=mlflow has missed 3 of 3 rows, which are all in metrics.jsonl"
    assert "word-of-mine" not in output + (tmp_path / "default" / "a" / "run.json").read_text()


def test_tracker_ignores_preemption_signals_and_its_loss_warns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tracking: Callable[[], list[int]]
) -> None:
    run = begun(tmp_path / "default" / "a")
    [process] = tracking()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        os.kill(process, number)
    run.log_row({"iteration": 1, "time/iteration": 1.0})
    run.finish("preempted")
    _, there = recorded(tmp_path)
    assert (there.info.status, there.data.metrics) == ("KILLED", {"time/iteration": 1.0})
    assert capsys.readouterr().out == ""
    run = begun(tmp_path / "default" / "b")
    [process] = tracking()
    os.kill(process, signal.SIGKILL)
    time.sleep(0.2)
    for iteration in (1, 2):
        run.log_row({"iteration": iteration})
    run.finish("done")
    assert [line.removeprefix("warning: tracker=mlflow ") for line in capsys.readouterr().out.splitlines()] == [
        "has lost its process (signal 9); training continues",
        "has missed 2 of 2 rows, which are all in metrics.jsonl",
    ]
