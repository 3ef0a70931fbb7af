"""A secret of a run is written to none of its files, and the run resumes with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from survival import start_job, wait_for_exit

from ippo_cli.compose.resume import saved_overrides

CANARY = "canary-5e1c-71f3"
REWARD = """
import os
calls = 0

def reward(examples, responses):
    global calls
    calls += 1
    assert os.environ["PIT_API_KEY"].startswith("canary")
    if calls >= 4 and not os.environ.get("CALM"):
        raise ValueError("401 for key " + os.environ["PIT_API_KEY"] + " at https://me:word@host")
    return {"team": [float(len(text)) for text in responses["low"]]}
"""


@pytest.mark.slow
def test_no_file_of_a_run_has_its_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reward.py").write_text(REWARD)
    monkeypatch.setenv("PIT_API_KEY", CANARY)
    keys = (
        "reward=function",
        f"reward.function={tmp_path}/reward.py:reward",
        "reward.failure_budget=0",
        "num_iterations=3",
        "checkpoint.every=1",
        "evaluation.every=0",
        "evaluation.greedy=false",
        "rollout.stop_strings=['${oc.env:PIT_API_KEY}']",
    )
    assert wait_for_exit(start_job(tmp_path, *keys)) == 12
    [folder] = [path.parent for path in tmp_path.glob("default/*/run.json")]
    assert "<PIT_API_KEY>" in (tmp_path / "errors").read_text()
    assert "<PIT_API_KEY>" in json.loads((folder / "run.json").read_text())["error"]
    assert "<PIT_API_KEY>" in (folder / "errors" / "rank_0.txt").read_text()
    assert "${oc.env:PIT_API_KEY}" in (folder / "config.yaml").read_text()
    assert any("${oc.env:PIT_API_KEY}" in text for text in saved_overrides(folder))
    assert hits(tmp_path) == []
    monkeypatch.setenv("CALM", "1")
    assert wait_for_exit(start_job(tmp_path, *keys)) == 0
    assert json.loads((folder / "run.json").read_text())["state"] == "done"
    assert hits(tmp_path) == []


def hits(root: Path) -> list[Path]:
    """Files with the secret, or with the URL's password."""
    # The function's file has the password in its source, and so has Python's bytecode of it.
    files = [path for path in root.rglob("*") if path.is_file() and not path.name.startswith("reward.")]
    return [path for path in files if CANARY.encode() in path.read_bytes() or b"me:word@" in path.read_bytes()]
