"""A run whose engine keeps old weights ends, also where transfers are not verified."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.needs_vllm, pytest.mark.slow]

PROGRAM = """
import sys
from ippo_cli.rollout.vllm.in_process import InProcessEngine

load = InProcessEngine.load_weights

def load_once(engine, weights, version):
    return load(engine, weights, version) if version < 3 else []

if "{fault}" == "missing":
    InProcessEngine.load_weights = load_once
sys.argv[0] = "ippo-train"
from ippo_cli.cli.train import main

main()
"""


@pytest.mark.parametrize(("fault", "code"), [("none", 0), ("missing", 16)])
def test_missing_push_ends_a_run_without_verification(fault: str, code: int, tmp_path: Path) -> None:
    overrides = [
        "rollout=vllm",
        "rollout.vllm.verify_every=0",
        "rollout.vllm.kv_cache_gib=0.05",
        "num_iterations=4",
        "rollout.buffer_size=32",
        "actor.warm_start_steps=20",
        "evaluation.every=0",
        f"output_dir={tmp_path}",
    ]
    command = [sys.executable, "-c", PROGRAM.replace("{fault}", fault), *overrides]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=tmp_path)
    assert ended.returncode == code, ended.stdout[-3000:] + ended.stderr[-3000:]
    assert ("rollout.max_sampler_gap=0.001: the log-probabilities of" in ended.stderr) == (code == 16), ended.stderr[
        -2000:
    ]
