"""Preemption, failure and death of one of several ranks: all ranks exit at the same point."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small import SMALL, rows

TINY = (
    *SMALL,
    "num_iterations=3",
    "evaluation.every=0",
    "checkpoint.every=0",
    "task.eval_size=2",
    "rollout.buffer_size=4",
    "actor.warm_start_steps=1",
    "evaluation.greedy=false",
)
LIMIT_S = 200
ASKED_S = 25.0  # 10 s to receive the request anywhere, 15 s to save
KILLED_S = 60.0  # for the other ranks to detect a lost rank
REWARD = '''
import multiprocessing, os, signal, sys, threading, time
from ippo_cli.config.errors import PreflightError
calls = 0
rank = os.environ.get("RANK", "0")

def length(text):
    return float(len(text))

def scored(responses):
    return {"team": [length(text) for text in responses["low"]]}

def send_signal(signal):
    open("signal_time", "w").close()
    os.kill(os.getpid(), signal)

def ask_while_decoding():
    frame = None
    while frame is None:
        time.sleep(0.01)
        frame = sys._current_frames()[threading.main_thread().ident]
        while frame is not None and frame.f_code.co_name != "decode":
            frame = frame.f_back
    send_signal(signal.SIGTERM)

def asks_one_rank_to_leave(examples, responses):
    """Rank 0 alone gets SIGTERM while its first agent writes in the second iteration."""
    global calls
    calls += 1
    if rank == "0" and calls == 2:
        threading.Thread(target=ask_while_decoding, daemon=True).start()
    return scored(responses)

def asks_one_rank_at_first(examples, responses):
    """The same in the first iteration, after the evaluation."""
    if rank == "0":
        threading.Thread(target=ask_while_decoding, daemon=True).start()
    return scored(responses)

def kills_a_rank(examples, responses):
    global calls
    calls += 1
    if rank == os.environ["VICTIM"] and calls == 3:
        send_signal(signal.SIGKILL)
    return scored(responses)

def fails_on_rank_0(examples, responses):
    """An error that is no failed reward, on one rank alone, in iteration 3."""
    global calls
    calls += 1
    if rank == "0" and calls == 4:
        raise PreflightError("only here")
    return scored(responses)

def pooled(examples, responses):
    """Workers that only a signal ends; the run is asked to leave while it waits for them, and so are they."""
    global calls
    calls += 1
    with multiprocessing.get_context("fork").Pool(2) as pool:
        if calls == 3:
            os.kill(os.getpid(), signal.SIGTERM)
            for worker in multiprocessing.active_children():
                worker.terminate()
            pool.map(time.sleep, [3600, 3600])
        return {"team": pool.map(length, responses["low"])}
'''


def leaves(root: Path, reward: str, *overrides: str, **environment: str) -> tuple[int, list[str], Path]:
    """Exit code, output lines and folder of a run with this reward; asserts that no process is left."""
    (root / "reward.py").write_text(REWARD)
    command = [
        sys.executable,
        "-m",
        "ippo_cli.cli.train",
        *TINY,
        f"output_dir={root}",
        "reward=function",
        f"reward.function={root}/reward.py:{reward}",
        *overrides,
    ]
    own = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    process = subprocess.Popen(
        command, cwd=root, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        printed, _ = process.communicate(timeout=LIMIT_S)  # the pipe closes when the last descendant exits
    except subprocess.TimeoutExpired:
        for child in [process.pid, *descendants(process.pid)]:
            os.kill(child, signal.SIGKILL)
        raise AssertionError(f"the run hung; it printed {process.communicate()[0]}") from None
    [folder] = [path.parent for path in root.glob("default/*/config.yaml")]
    return process.returncode, printed.splitlines(), folder


def seconds_since_it_was_told(root: Path) -> float:
    return time.time() - (root / "signal_time").stat().st_mtime


def descendants(parent: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True).stdout.split()
    return [number for child in map(int, found) for number in (child, *descendants(child))]


def state_of(folder: Path) -> dict[str, object]:
    return json.loads((folder / "run.json").read_text())


@pytest.mark.slow
def test_one_preempted_rank_stops_the_other_during_rollout(tmp_path):
    long = ["rollout.max_new_tokens=60", "rollout.min_new_tokens=60"]
    keys = ["launch.processes=2", "deepspeed=zero3", "rollout.zero3_gather=layer", *long]
    code, result, folder = leaves(tmp_path, "asks_one_rank_to_leave", *keys)
    assert seconds_since_it_was_told(tmp_path) <= ASKED_S
    assert code == 75, result
    assert state_of(folder)["state"] == "preempted"
    assert [row["iteration"] for row in rows(folder)] == [0, 1]  # the second rollout was abandoned
    assert sum("stop requested" in line for line in result) == 1


@pytest.mark.slow
def test_other_rank_stops_within_a_long_rollout(tmp_path):
    long = ["rollout.max_new_tokens=60", "rollout.min_new_tokens=60", "rollout.decode_batch_size=1"]
    keys = ["launch.processes=2", "deepspeed=zero2", "rollout.buffer_size=4000", "algorithm.mini_batch_size=4000"]
    code, result, folder = leaves(tmp_path, "asks_one_rank_at_first", *keys, *long)  # would take minutes
    assert seconds_since_it_was_told(tmp_path) <= ASKED_S
    assert code == 75, result
    assert [row["iteration"] for row in rows(folder)] == [0]
    assert state_of(folder)["state"] == "preempted"


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["0", "1"])
def test_killed_rank_is_reported_first_and_last(tmp_path, victim):
    code, result, folder = leaves(tmp_path, "kills_a_rank", "launch.processes=2", "deepspeed=zero2", VICTIM=victim)
    assert seconds_since_it_was_told(tmp_path) <= KILLED_S
    assert code == 1, result
    first, *others, last = [line for line in result if line.startswith("ippo: ")]
    assert first.startswith(f"ippo: rank {victim} was killed by SIGKILL (")
    assert last.startswith(f"ippo: rank {victim} was killed by SIGKILL (")
    assert all(line.startswith(f"ippo: rank {1 - int(victim)} exited because rank {victim} is gone") for line in others)
    assert not any("Traceback" in line or "gloo" in line for line in result), result
    state = state_of(folder)
    assert state["state"] == "failed"
    assert str(state["error"]).startswith(f"rank {victim} was killed by SIGKILL")
    assert "Traceback" in (folder / "errors" / f"rank_{1 - int(victim)}.txt").read_text()


@pytest.mark.core
@pytest.mark.slow
def test_failure_on_one_rank_saves_on_both(tmp_path):
    code, result, folder = leaves(tmp_path, "fails_on_rank_0", "launch.processes=2", "deepspeed=zero2")
    assert code == 3
    assert "saved after iteration 2" in "\n".join(result)
    assert sum("only here" in line for line in result) == 1
    assert "OtherRankFailed" in (folder / "errors" / "rank_1.txt").read_text()
    assert state_of(folder)["state"] == "failed"


@pytest.mark.slow
def test_reward_pool_works_and_blocked_reward_is_abandoned(tmp_path):
    code, result, folder = leaves(tmp_path, "pooled")
    assert code == 75, result
    assert state_of(folder)["state"] == "preempted"
    assert [row["iteration"] for row in rows(folder)] == [0, 1]
