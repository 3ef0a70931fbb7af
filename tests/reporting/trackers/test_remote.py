"""The tracker's child process in failure cases. Needs no tracking library."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable

import pytest

from ippo_cli.reporting.trackers import remote
from ippo_cli.reporting.trackers.remote import MAX_QUEUED_MESSAGES, RemoteTracker
from ippo_cli.reporting.trackers.tracker import TrackerError

ROW = {f"low/score/part/{number}": 0.123456789 for number in range(100)}


def test_blocked_process_does_not_delay_rows_or_end(tracking: Callable[[], list[int]]) -> None:
    tracker = RemoteTracker("mlflow", {}, finish_timeout_s=60, environment={})
    [process] = tracking()
    os.kill(process, signal.SIGSTOP)
    began, rows, problem = time.perf_counter(), 0, ""
    while not problem and rows < 3 * MAX_QUEUED_MESSAGES:
        rows += 1
        try:
            tracker.log(ROW, rows)
        except TrackerError as error:
            problem = str(error)
    assert problem == f"is {MAX_QUEUED_MESSAGES} messages behind"
    with pytest.raises(TrackerError) as raised:
        tracker.finish("done")
    assert raised.value.missed == rows > MAX_QUEUED_MESSAGES
    assert time.perf_counter() - began < 20
    assert tracking() == []


def test_process_that_cannot_start_fails_at_first_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    tracker = RemoteTracker("mlflow", {}, finish_timeout_s=60, environment={})
    for _ in range(2):
        with pytest.raises(TrackerError, match=r"^has no process \(No such file or directory\)$"):
            tracker.log(ROW, 1)
    with pytest.raises(TrackerError) as raised:
        tracker.finish("done")
    assert raised.value.missed == 2


def test_preempted_run_waits_shorter(monkeypatch: pytest.MonkeyPatch, tracking: Callable[[], list[int]]) -> None:
    monkeypatch.setattr(remote, "FAILED_FINISH_TIMEOUT_S", 0.5)
    tracker = RemoteTracker("mlflow", {}, finish_timeout_s=60, environment={})
    [process] = tracking()
    os.kill(process, signal.SIGSTOP)
    began = time.perf_counter()
    with pytest.raises(TrackerError, match=r"has not finished within 0\.5 s and is killed"):
        tracker.finish("preempted")
    assert 0.5 < time.perf_counter() - began < 5
