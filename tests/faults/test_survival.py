"""Faults on purpose at points of a real run: nothing that was published is lost, and the run goes on to the byte."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from small import small_config, train
from survival import ONE_AGENT, SHORT, damaged_by_a_flip, ended, fingerprint, start_job, stopped, undisturbed

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.faults import FAULT_POINTS
from ippo_cli.runs.folder import MANIFEST, list_checkpoints, read_run_state

KEYS = (*SHORT, ONE_AGENT)  # two agents are stopped in test_resume.py, and in the campaign


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("survival")


@pytest.fixture(scope="module")
def whole(root: Path) -> tuple:
    """The fingerprint of the run that nothing happens to, and how often it comes by each point."""
    return undisturbed(root, *KEYS)


@pytest.mark.slow
def test_run_stopped_in_any_phase_resumes_to_the_byte(whole: tuple, root: Path) -> None:
    expected, passes = whole
    folder = None
    for point, kind in (("generate", "sigterm"), ("targets", "sigusr1"), ("step", "sigusr2"), ("save.write", "sigint")):
        time = 1 if folder else passes[point] // 4 + 1  # in the first iteration; later ones as soon as it is there
        folder, state = stopped(root, *KEYS, faults=[f"{point}:{kind}:{time}"], folder=folder)
        assert state == "preempted", (point, kind)
    folder, state = stopped(root, *KEYS, faults=[], folder=folder)
    assert state == "done"
    assert fingerprint(folder) == expected


@pytest.mark.slow
def test_job_killed_in_any_part_of_a_save_resumes_to_the_byte(whole: tuple, tmp_path: Path) -> None:
    for fault in ("save.write:sigkill", "save.rename:sigkill:2", "prune:sigkill"):  # nothing is there after the first
        assert ended(start_job(tmp_path, *KEYS, faults=[fault])) == -9, fault
    assert ended(start_job(tmp_path, *KEYS)) == 0
    done = [path.parent for path in tmp_path.glob("default/*/run.json") if read_run_state(path.parent) == "done"]
    assert len(done) == 1
    assert fingerprint(done[0]) == whole[0]
    assert not list(done[0].rglob("*.tmp"))


@pytest.mark.slow
def test_hanging_run_exits_with_11_and_resumes_to_the_byte(whole: tuple, tmp_path: Path) -> None:
    limits = ("launch.watchdog_s=2", "launch.watchdog_first_s=100")
    assert ended(start_job(tmp_path, *KEYS, *limits, faults=["score:hang:2"])) == 11
    assert "no rank made progress for 2 s" in (tmp_path / "errors").read_text()
    [folder] = [path.parent for path in tmp_path.glob("default/*/run.json")]
    assert read_run_state(folder) == "failed"
    assert "in _sampled" in (folder / "errors" / "stacks_rank_0.txt").read_text()
    assert ended(start_job(tmp_path, *KEYS, *limits)) == 0
    assert fingerprint(folder) == whole[0]


@pytest.mark.slow
def test_a_disk_that_fails_now_and_then_costs_checkpoints_and_no_number(
    whole: tuple, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = ["log:eacces", "save.write:enospc", "save.rename:eio"]
    folder, state = stopped(root, *KEYS, faults=faults)
    assert state == "done"
    assert fingerprint(folder) == whole[0]
    said = capsys.readouterr().out
    assert said.count("warning: checkpoint not saved (") == 2
    assert said.count("metrics.jsonl cannot be written (Permission denied") == 1


@pytest.mark.slow
def test_a_hundred_flipped_bits_are_all_seen(root: Path) -> None:
    newest = list_checkpoints(train(root, *KEYS, "num_iterations=1") / "checkpoints")[-1]
    chance = random.Random(0)
    assert [damaged_by_a_flip(newest, chance) for _ in range(100)].count(None) == 0
    head = [damaged_by_a_flip(newest, chance, newest / MANIFEST, place) for place in range(40)]
    assert head.count(None) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("save:sigkill", "has an unknown point; known points: compose init"),
        ("save.write:sigkil", "has an unknown kind; known kinds: sigkill"),
        ("save.write", "has 1 parts"),
        ("save.write:sigkill:0", "needs whole numbers"),
        ("save.write:sigkill:1:x", "needs whole numbers"),
    ],
)
def test_a_fault_that_cannot_happen_is_refused(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        small_config(tmp_path, f"debug_faults=[{text}]")


def test_every_point_stands_in_the_code_once() -> None:
    source = Path(__file__).parents[2] / "src" / "ippo_cli"
    text = "".join(file.read_text() for file in source.rglob("*.py"))
    assert {point: text.count(f'fault_point("{point}")') for point in FAULT_POINTS} == dict.fromkeys(FAULT_POINTS, 1)
