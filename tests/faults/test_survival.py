"""Fault injection into real runs: published checkpoints stay usable, and runs resume exactly."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from small import small_config, train
from survival import (
    ONE_AGENT,
    SHORT,
    find_damage_after_flip,
    fingerprint,
    run_undisturbed,
    run_with_faults,
    start_job,
    wait_for_exit,
)

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.faults import FAULT_POINTS
from ippo_cli.runs.folder import MANIFEST, list_checkpoints, read_run_state

KEYS = (*SHORT, ONE_AGENT)  # test_resume.py and the campaign stop runs of two agents


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("survival")


@pytest.fixture(scope="module")
def reference(root: Path) -> tuple:
    """Fingerprint of an undisturbed run, and its passes of each fault point."""
    return run_undisturbed(root, *KEYS)


@pytest.mark.slow
def test_run_stopped_in_any_phase_resumes_exactly(reference: tuple, root: Path) -> None:
    expected, passes = reference
    folder = None
    for point, kind in (("generate", "sigterm"), ("targets", "sigusr1"), ("step", "sigusr2"), ("save.write", "sigint")):
        time = 1 if folder else passes[point] // 4 + 1  # in the first iteration; later ones at the first pass
        folder, state = run_with_faults(root, *KEYS, faults=[f"{point}:{kind}:{time}"], folder=folder)
        assert state == "preempted", (point, kind)
    folder, state = run_with_faults(root, *KEYS, faults=[], folder=folder)
    assert state == "done"
    assert fingerprint(folder) == expected


@pytest.mark.core
@pytest.mark.slow
def test_job_killed_during_save_resumes_exactly(reference: tuple, tmp_path: Path) -> None:
    for fault in ("save.write:sigkill", "save.rename:sigkill:2", "prune:sigkill"):  # the first one leaves no checkpoint
        assert wait_for_exit(start_job(tmp_path, *KEYS, faults=[fault])) == -9, fault
    assert wait_for_exit(start_job(tmp_path, *KEYS)) == 0
    done = [path.parent for path in tmp_path.glob("default/*/run.json") if read_run_state(path.parent) == "done"]
    assert len(done) == 1
    assert fingerprint(done[0]) == reference[0]
    assert not list(done[0].rglob("*.tmp"))


@pytest.mark.core
@pytest.mark.slow
def test_hanging_run_exits_with_11_and_resumes_exactly(reference: tuple, tmp_path: Path) -> None:
    limits = ("launch.watchdog_s=2", "launch.watchdog_first_s=100")
    assert wait_for_exit(start_job(tmp_path, *KEYS, *limits, faults=["score:hang:2"])) == 11
    assert "no rank made progress for 2 s" in (tmp_path / "errors").read_text()
    [folder] = [path.parent for path in tmp_path.glob("default/*/run.json")]
    assert read_run_state(folder) == "failed"
    assert "in _collect_sampled" in (folder / "errors" / "stacks_rank_0.txt").read_text()
    assert wait_for_exit(start_job(tmp_path, *KEYS, *limits)) == 0
    assert fingerprint(folder) == reference[0]


@pytest.mark.slow
def test_failing_disk_costs_only_checkpoints(reference: tuple, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = ["log:eacces", "save.write:enospc", "save.rename:eio"]
    folder, state = run_with_faults(root, *KEYS, faults=faults)
    assert state == "done"
    assert fingerprint(folder) == reference[0]
    output = capsys.readouterr().out
    assert output.count("warning: checkpoint not saved (") == 2
    assert output.count("metrics.jsonl cannot be written (Permission denied") == 1


@pytest.mark.slow
def test_flipped_bits_are_detected(root: Path) -> None:
    newest = list_checkpoints(train(root, *KEYS, "num_iterations=1") / "checkpoints")[-1]
    rng = random.Random(0)
    assert [find_damage_after_flip(newest, rng) for _ in range(100)].count(None) == 0
    head = [find_damage_after_flip(newest, rng, newest / MANIFEST, place) for place in range(40)]
    assert head.count(None) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("save:sigkill", "has an unknown point; known points: compose init"),
        ("save.write:sigkil", "has an unknown kind; known kinds: sigkill"),
        ("save.write", "has 1 parts"),
        ("save.write:sigkill:0", "needs whole numbers"),
        ("save.write:sigkill:1:x", "needs whole numbers"),
    ],
)
def test_invalid_fault_is_rejected(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        small_config(tmp_path, f"debug_faults=[{text}]")


def test_every_fault_point_is_in_the_code_once() -> None:
    source = Path(__file__).parents[2] / "src" / "ippo_cli"
    text = "".join(file.read_text() for file in source.rglob("*.py"))
    assert {point: text.count(f'fault_point("{point}")') for point in FAULT_POINTS} == dict.fromkeys(FAULT_POINTS, 1)
