"""Several ranks on this machine: one folder, the same samples, exact resume after a signal, one exit code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small import SMALL, final_weights, rows, train, train_on_two_ranks

from ippo_cli.compose.load import from_yaml
from ippo_cli.runs import launch
from ippo_cli.runs.handlers import handle_signals
from ippo_cli.runs.launch import FORWARDED, _RankProcesses
from ippo_cli.training.process import run_training

TWO = ["launch.processes=2", "deepspeed=zero2"]
LONG = ["num_iterations=8", "evaluation.every=0", "checkpoint.every=5"]


def ippo_train(root: Path, *overrides: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    resumed = any(text.startswith("resume=") for text in overrides)  # overrides on the command line replace saved ones
    own = () if resumed else (*SMALL, f"output_dir={root}")
    command = [*(prefix or (sys.executable,)), "-m", "ippo_cli.cli.train", *own, *overrides]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=root, env=environment, **output)


def finished(process: subprocess.Popen[str], code: int = 0) -> str:
    output, _ = process.communicate(timeout=240)
    assert process.returncode == code, output
    return output


def only_run(root: Path) -> Path:
    runs = [path.parent for path in root.glob("default/*/run.json")]
    assert len(runs) == 1, runs
    return runs[0]


def wait_for_rows(root: Path, count: int, place: str = "default/*/metrics.jsonl") -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        files = list(root.glob(place))
        if files and len(files[0].read_text().splitlines()) >= count:
            return
        time.sleep(0.05)
    raise AssertionError("the run wrote no metrics")


def test_preemption_before_rank_start_is_not_a_failure():
    def sleeping() -> _RankProcesses:
        ranks = _RankProcesses()
        # As in production: a background job of a shell would otherwise ignore SIGINT.
        with handle_signals(FORWARDED, ranks.forward_signal):
            for _ in range(2):
                ranks.add(subprocess.Popen(["sleep", "60"]))
        return ranks

    for number, code in ((signal.SIGUSR1, 75), (signal.SIGINT, 130)):
        ranks = sleeping()
        ranks.forward_signal(number, None)
        failure = ranks.wait()
        assert failure is not None
        assert (failure.exit_code, failure.is_preempted, failure.is_killed) == (code, True, False)
    ranks = sleeping()
    ranks.children[0].kill()
    ranks.children[1].terminate()
    failure = ranks.wait()
    assert failure is not None
    assert (failure.exit_code, failure.is_preempted, failure.is_killed) == (1, False, True)


def test_starting_rank_receives_earlier_signals():
    ranks = _RankProcesses()
    ranks.forward_signal(signal.SIGTERM, None)
    ranks.add(subprocess.Popen(["sleep", "60"]))
    assert ranks.children[0].wait(timeout=10) == -signal.SIGTERM


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing tells a rank of its parent's end")
def test_rank_exits_if_parent_died_before_prctl():
    program = (
        "import os; from ippo_cli.runs.parent import terminate_with_parent; terminate_with_parent({}); print('there')"
    )
    for parent, code in (("os.getppid()", 0), ("os.getppid() + 1", -signal.SIGTERM)):
        done = subprocess.run([sys.executable, "-c", program.format(parent)], timeout=60, check=False)
        assert done.returncode == code


def test_rendezvous_port_is_reserved(tmp_path, monkeypatch):
    met = []

    def together(places, *_):
        met.append(places[0]["MASTER_PORT"])
        assert {place["MASTER_PORT"] for place in places} == {met[0]}
        with pytest.raises(OSError, match="in use"):
            socket.create_server(("127.0.0.1", int(met[0])))

    monkeypatch.setattr(launch, "run_rank_processes", together)
    launch.run_ranks(tmp_path, 2, resumed=False)
    assert met


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with two ranks from an external launcher."""
    return train_on_two_ranks(tmp_path_factory.mktemp("whole"), "deepspeed=zero2", *LONG)


@pytest.mark.slow
def test_two_ranks_sample_as_one_rank(tmp_path, whole):
    one, two = rows(train(tmp_path, *LONG)), rows(whole)
    assert json.loads((whole / "run.json").read_text())["state"] == "done"
    assert [row["iteration"] for row in two] == list(range(9))
    # Before the first update the ranks have the same weights and samples as one process.
    for key, value in one[0].items():
        assert two[0][key] == pytest.approx(value, abs=1e-6), key
    for key, value in one[1].items():
        assert two[1][key] == pytest.approx(value, rel=1e-3, abs=1e-5), key


def sweep_rows(folder: Path) -> list[dict]:
    return json.loads((folder / "sweep.json").read_text())["jobs"]


@pytest.mark.slow
def test_preempted_sweep_starts_no_job_and_resumes(tmp_path):
    slow = tmp_path / "slow"
    slow.touch()
    (tmp_path / "reward.py").write_text(
        "import os, time\n\ndef reward(examples, responses):\n"
        f"    time.sleep(0.5 * os.path.exists({str(slow)!r}))\n    return {{'team': [1.0] * len(examples)}}\n"
    )
    sweep = [
        *SMALL,
        "output_dir=out",
        "-m",
        "seed=1,2",
        "num_iterations=5",
        "evaluation.every=0",
        "reward=function",
        "reward.function=reward.py:reward",
    ]
    process = ippo_train(tmp_path, *sweep, "resume=auto")
    wait_for_rows(tmp_path, 2, "out/default/*/1/metrics.jsonl")
    process.send_signal(signal.SIGTERM)
    result = finished(process, 75)
    [folder] = tmp_path.glob("out/default/multirun-*")
    assert f"resume with: ippo-train -m resume={folder.relative_to(tmp_path)}" in result
    assert [row["state"] for row in sweep_rows(folder)] == ["preempted", "waiting"]
    assert [path.parent.name for path in folder.glob("*/run.json")] == ["1"]
    slow.unlink()
    result = finished(ippo_train(tmp_path, *sweep, "resume=auto"))
    assert "resumed from" in result
    assert list(tmp_path.glob("out/default/*")) == [folder]
    assert [row["state"] for row in sweep_rows(folder)] == ["done", "done"]
    assert [row["iteration"] for row in rows(folder / "1")] == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_preempted_ranks_save_and_resume_exactly(tmp_path, whole):
    process = ippo_train(tmp_path, *TWO, *LONG)
    wait_for_rows(tmp_path, 3)
    process.send_signal(signal.SIGTERM)
    finished(process, 75)
    folder = only_run(tmp_path)
    state = json.loads((folder / "run.json").read_text())
    assert state["state"] == "preempted"
    assert len(rows(folder)) < 9
    alone = tmp_path / "alone"
    shutil.copytree(folder, alone)
    finished(ippo_train(tmp_path, f"resume={folder}"))
    assert rows(folder) == rows(whole)
    expected, found = final_weights(whole), final_weights(folder)
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    config = from_yaml(alone / "config.yaml")
    config.checkpoint.reshard = True
    run_training(config, alone, resumed=True)  # one rank resumes the checkpoint of two ranks
    for row, known in zip(rows(alone), rows(whole), strict=True):
        assert row == pytest.approx(known, rel=1e-3, abs=1e-4, nan_ok=True)


@pytest.mark.slow
def test_torchrun_ranks_agree_on_one_folder(tmp_path):
    prefix = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")
    finished(ippo_train(tmp_path, "num_iterations=1", "evaluation.every=0", "deepspeed=zero3", prefix=prefix))
    folder = only_run(tmp_path)
    assert json.loads((folder / "run.json").read_text())["state"] == "done"
    manifest = json.loads((folder / "checkpoints" / "step_00000001" / "manifest.json").read_text())
    assert "rng_rank_1.json" in manifest["files"]


@pytest.mark.slow
def test_same_command_on_two_nodes_makes_one_run(tmp_path, whole, monkeypatch):
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        monkeypatch.setenv("MASTER_PORT", str(probe.getsockname()[1]))
    machines = []
    for number in ("0", "1"):
        monkeypatch.setenv("NODE_RANK", number)
        machines.append(ippo_train(tmp_path, "launch.nodes=2", "deepspeed=zero2", *LONG, "max_iterations_this_run=1"))
    for machine in machines:
        finished(machine)
    first, last = rows(only_run(tmp_path))
    expected = rows(whole)[:2]
    assert first == expected[0]
    assert {key: last[key] for key in expected[1]} == expected[1]


@pytest.mark.slow
def test_error_in_one_rank_ends_all(tmp_path):
    reward = tmp_path / "reward.py"
    reward.write_text(
        "import os\n\ndef reward(examples, responses):\n"
        "    if os.environ['RANK'] == '1':\n        raise ValueError('broken on purpose')\n"
        "    return {'team': [0.0] * len(examples)}\n"
    )
    began = time.monotonic()
    output = finished(ippo_train(tmp_path, *TWO, "reward=function", f"reward.function={reward}:reward"), 12)
    assert "broken on purpose" in " ".join(output.split())  # lines are wrapped
    assert time.monotonic() - began < 120


@pytest.mark.slow
def test_failed_job_does_not_stop_sweep_and_is_rerun(tmp_path):
    reward = tmp_path / "reward.py"
    text = "def bad(examples, responses):\n    raise ValueError('broken on purpose')\n\n\n"
    reward.write_text(
        text
        + text.replace("bad", "good").replace(
            "raise ValueError('broken on purpose')", "return {'team': [1.0] * len(examples)}"
        )
    )
    output = finished(
        ippo_train(
            tmp_path,
            "-m",
            "reward=function",
            "reward.function=reward.py:bad,reward.py:good",
            "num_iterations=1",
            "evaluation.every=0",
        ),
        12,
    )
    [folder] = tmp_path.glob("default/multirun-*")
    bad, good = sweep_rows(folder)
    assert (bad["state"], bad["exit_code"], good["state"], good["exit_code"]) == ("failed", 12, "done", 0)
    assert "broken on purpose" in bad["error"]
    assert good["score"]["last"]["score"] == 1.0
    assert f"job 1 of 2: reward.function={reward}:bad: " in " ".join(output.split())
    assert "1 of 2 jobs are done" in output
    finished_at = (folder / "2" / "metrics.jsonl").stat().st_mtime_ns
    reward.write_text(
        reward.read_text().replace("raise ValueError('broken on purpose')", "return {'team': [0.5] * len(examples)}")
    )
    output = finished(ippo_train(tmp_path, "-m", f"resume={folder}"))
    assert "1 of them done" in output
    assert [row["state"] for row in sweep_rows(folder)] == ["done", "done"]
    assert (folder / "2" / "metrics.jsonl").stat().st_mtime_ns == finished_at
    assert [row["iteration"] for row in rows(folder / "1")] == [0, 1]
