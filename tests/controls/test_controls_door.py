"""`ippo-controls` on the example of its page: trains, evaluates cross-play, reports, continues after a kill."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small import SMALL_MODEL

PAGE = (Path(__file__).parents[2] / "docs" / "controls.md").read_text()


def start(folder: Path, module: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", f"ippo_cli.cli.{module}", *arguments],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> str:
    text = process.communicate(timeout=300)[0]
    assert process.returncode == 0, text[-3000:]
    return text


@pytest.mark.slow
def test_example_of_the_page_continues_after_a_kill(tmp_path: Path) -> None:
    [command] = re.findall(r"```bash\n(ippo-controls .*?)```", PAGE, re.DOTALL)
    arguments = [*shlex.split(command.replace("\\\n", " "))[1:], *SMALL_MODEL, "tracker.report=false"]
    process = start(tmp_path, "controls", *arguments)
    until = time.monotonic() + 240
    while not (found := list(tmp_path.glob("outputs/controls/*/no_messages-0/run.json"))):
        assert process.poll() is None, output(process)
        assert time.monotonic() < until
        time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    folder = found[0].parents[1]
    finished = (folder / "team-0" / "metrics.jsonl").read_bytes()
    text = output(start(tmp_path, "controls", *arguments))
    assert ", 1 of them done" in text or ", 2 of them done" in text
    assert (folder / "team-0" / "metrics.jsonl").read_bytes() == finished
    known = json.loads((folder / "controls.json").read_text())
    assert {(run["name"], run["seed"], run["state"]) for run in known["runs"]} == {
        (name, seed, "done") for name in ("team", "no_messages") for seed in (0, 1)
    }
    assert all(run["tokens"] == 2 * 32 * 2 for run in known["runs"]), "iterations, episodes, agents of one token"
    assert len(known["results"]["no_messages"]["differences"]) == 2
    assert len(known["results"]["other_seeds"]["differences"]) == 1
    again = output(start(tmp_path, "controls", str(folder)))
    assert re.search(r"^no_messages +2 ", again, re.MULTILINE)
    assert again.strip() in text, "the folder alone prints the same table"
    verified = output(start(tmp_path, "verify", str(folder / "no_messages-1"), "count=0"))
    assert verified.splitlines()[-1].startswith("verified: ")
