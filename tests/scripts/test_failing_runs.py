"""`scripts/bench/failing_runs.py --typed`: `ippo-doctor` names causes of new failing runs, and none of healthy ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench" / "failing_runs.py"


def run_script(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(folder), "--typed", "--verbose", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_doctor_names_the_causes_of_new_runs(tmp_path: Path) -> None:
    done = run_script(tmp_path, "--seeds", "98", "--healthy-seed", "4205")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "13 of 13 as expected" in done.stdout


def test_unexpected_refusal_is_a_miss(tmp_path: Path) -> None:
    sys.path.insert(0, str(SCRIPT.parent))
    from failing_runs import check_by_commands
    from runs_to_diagnose import Job

    is_right, text, output = check_by_commands(Job(name="run", overrides=("seed=minus",)), tmp_path)
    assert (is_right, text) == (False, "exit code 2 before the start of training"), output
