"""The benchmark of speed, end to end on a model that takes no time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench" / "speed.py"
SMALL = "hidden=16 layers=1 rollout.buffer_size=16 rollout.decode_batch_size=16 algorithm.mini_batch_size=8"


@pytest.mark.slow
def test_variants_and_peers_are_timed_in_turn(tmp_path: Path) -> None:
    peer = tmp_path / "peer.py"
    peer.write_text("print({'loss': 1.0})\nprint('{\\n\"episodes_per_sec_excl_first\": 0.5\\n}')\n")
    command = [
        sys.executable,
        str(SCRIPT),
        "eos",
        "--iterations",
        "1",
        "--ideal",
        "--threads",
        "1",
        "--variant",
        f"one: agents=1 {SMALL}",
        "--variant",
        f"two: {SMALL}",
        "--peer",
        f"trl={sys.executable}:{peer}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert list(said["runs"]) == ["one", "two", "trl"]
    for name, agents in (("one", 1), ("two", 2)):
        run = {key: value["median"] for key, value in said["runs"][name].items()}
        phases = sum(run[f"{phase}_s"] for phase in ("rollout", "score", "targets", "update"))
        assert phases <= run["iteration_s"] * 1.01
        assert run["samples_per_second"] == pytest.approx(16 * agents / run["iteration_s"], rel=0.01)
        assert 0.0 < run["efficiency"] < 1.5
        assert 1.0 <= run["response_length"] <= 32.0
    ratio = said["samples per second, one divided by"]["trl"]["median"]
    assert ratio == pytest.approx(said["runs"]["one"]["samples_per_second"]["median"] / 0.5, rel=0.01)
