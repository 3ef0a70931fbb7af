"""A hanging run exits with 11 on all ranks and writes the stacks of each rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest
from rank_scripts import read_output, start_ranks

from ippo_cli.runs.watchdog import descendants, surviving_children

pytestmark = pytest.mark.slow

SCENES = {"waits": 2, "within": 1, "stopped0": 2, "stopped1": 2, "suspended": 1, "hangs": 2}
Ended = dict[str, tuple[Path, list[int | None]]]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Folder and exit codes by scene; a stopped rank is killed afterwards."""
    root, jobs, results = tmp_path_factory.mktemp("watchdog"), {}, {}
    script = Path(__file__).with_name("watched_ranks.py")
    for scene, ranks in SCENES.items():
        (folder := root / scene).mkdir()
        (folder / "run.json").write_text(json.dumps({"state": "running"}))
        jobs[scene] = (folder, start_ranks(script, str(folder), scene, folder=folder, world_size=ranks))
    suspend(*jobs["suspended"])
    for scene, (folder, children) in jobs.items():
        stopped = children[int(scene[-1])] if scene.startswith("stopped") else None
        for child in children:
            if child is not stopped:
                child.join(60)
        if stopped is not None:
            stopped.kill()
            stopped.join()
        results[scene] = (folder, [child.exitcode for child in children])
    return results


def suspend(folder: Path, children: list[ForkServerProcess]) -> None:
    """Suspend a whole job for longer than the limit, then continue it."""
    until = time.monotonic() + 60
    while not (folder / "there").exists() and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(children[0].pid or 0, signal.SIGSTOP)
    time.sleep(2.0)
    os.kill(children[0].pid or 0, signal.SIGCONT)


@pytest.mark.parametrize("scene", ["waits", "within", "suspended"])
def test_waiting_or_suspended_ranks_do_not_hang(ended: Ended, scene: str) -> None:
    folder, codes = ended[scene]
    assert codes == [0] * SCENES[scene], read_output(folder)
    assert not (folder / "errors").exists()


@pytest.mark.parametrize("stopped", [0, 1])
def test_stopped_rank_ends_others_with_exit_code_11(ended: Ended, stopped: int) -> None:
    folder, codes = ended[f"stopped{stopped}"]
    other = 1 - stopped
    assert codes[other] == 11, read_output(folder)
    assert "in barrier" in (folder / "errors" / f"stacks_rank_{other}.txt").read_text()
    assert "no rank made progress for 1 s" in (folder / f"errors{other}").read_text()
    assert json.loads((folder / "run.json").read_text())["state"] == "failed"


def test_hanging_ranks_write_stacks_and_kill_children(ended: Ended) -> None:
    folder, codes = ended["hangs"]
    assert codes == [11, 11], read_output(folder)
    for rank in (0, 1):
        assert "in hangs" in (folder / "errors" / f"stacks_rank_{rank}.txt").read_text()
        child = int((folder / f"child{rank}").read_text())
        assert not Path(f"/proc/{child}/exe").exists() or "sleep" not in os.readlink(f"/proc/{child}/exe")
    output = [(folder / f"errors{rank}").read_text().count("no rank made progress") for rank in (0, 1)]
    assert sorted(output) == [0, 1]
    assert descendants(2**30) == []


def test_surviving_children_are_not_killed() -> None:
    ended, kept = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    surviving_children.add(kept.pid)
    try:
        found = descendants(os.getpid())
        assert ended.pid in found
        assert kept.pid not in found
    finally:
        surviving_children.discard(kept.pid)
        for process in (ended, kept):
            process.kill()
            process.wait()
