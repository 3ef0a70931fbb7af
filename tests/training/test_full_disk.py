"""Full disks during a run: losses, messages and exit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import mounted
from small import new_run, rows

from ippo_cli.config.errors import PreflightError, StorageError
from ippo_cli.runs.checkpoint_files import newest_intact_checkpoint
from ippo_cli.training.process import run_training

REWARD = '''
import os
from pathlib import Path
from disks import fill
calls = 0

def reward(examples, responses):
    """Fills the disk at one call, and makes room again at another."""
    global calls
    calls += 1
    if str(calls) == os.environ["FILL_AT"]:
        fill(Path(os.environ["DISK"]))
    if str(calls) == os.environ["FREE_AT"]:
        (Path(os.environ["DISK"]) / "filler").unlink()
    return {"team": [float(len(text)) for text in responses["low"]]}
'''


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "reward.py").write_text(REWARD)
    with mounted(tmp_path / "disk", "14m") as folder:
        monkeypatch.setenv("DISK", str(folder))
        yield folder


def overrides(disk: Path) -> list[str]:
    return [
        "checkpoint.every=1",
        "num_iterations=6",
        "evaluation.every=0",
        "reward=function",
        f"reward.function={disk.parent / 'reward.py'}:reward",
        "tracker.samples_every=1",
    ]


def leftovers(disk: Path) -> list[Path]:
    return [path for path in disk.rglob("*") if path.name.endswith((".tmp", ".partial"))]


@pytest.mark.slow
def test_temporarily_full_disk_costs_only_checkpoints(
    disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FILL_AT", "4")  # in iteration 2: the evaluation before training has two calls
    monkeypatch.setenv("FREE_AT", "6")
    config, folder = new_run(disk, *overrides(disk))
    run_training(config, folder, resumed=False)
    output = capsys.readouterr().out
    assert output.count("warning: checkpoint not saved (") == 2
    assert [row["iteration"] for row in rows(folder)] == list(range(7))
    assert json.loads((folder / "run.json").read_text())["state"] == "done"
    assert newest_intact_checkpoint(folder / "checkpoints") == folder / "checkpoints" / "step_00000006"
    assert leftovers(disk) == []


@pytest.mark.slow
def test_full_disk_ends_run_which_resumes_later(
    disk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FILL_AT", "4")
    monkeypatch.setenv("FREE_AT", "0")
    config, folder = new_run(disk, *overrides(disk), "num_iterations=12")
    with pytest.raises(StorageError, match="cannot save checkpoints, 3 failures in a row") as raised:
        run_training(config, folder, resumed=False)
    assert raised.value.exit_code == 13
    assert json.loads((folder / "run.json").read_text())["state"] == "failed"
    assert newest_intact_checkpoint(folder / "checkpoints") is not None
    assert leftovers(disk) == []
    assert capsys.readouterr().err == ""
    (disk / "filler").unlink()
    monkeypatch.setenv("FILL_AT", "0")  # the reward is imported again, and its call count restarts
    run_training(config, folder, resumed=True)
    assert [row["iteration"] for row in rows(folder)] == list(range(13))


@pytest.mark.slow
def test_too_small_disk_is_rejected_before_training(disk: Path) -> None:
    config, folder = new_run(disk, *overrides(disk), "actor.hidden_size=160")
    with pytest.raises(PreflightError, match="up to 3 checkpoints exist at once"):
        run_training(config, folder, resumed=False)
    output = json.loads((folder / "run.json").read_text())
    assert (output["state"], output["iterations"]) == ("failed", 0)
    assert os.listdir(folder / "checkpoints") == []
