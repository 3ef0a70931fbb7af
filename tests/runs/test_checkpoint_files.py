"""Checkpoint folders: atomic commit, verification before loading, and removal of old ones."""

from __future__ import annotations

import json
import random
import resource
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest
import torch

from ippo_cli.agents.team import Team
from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import PreflightError, ResumeError, StorageError
from ippo_cli.config.schema import CheckpointConfig, CheckpointWeights
from ippo_cli.reporting.run_log import RunState
from ippo_cli.runs import checkpoint_files
from ippo_cli.runs.checkpoint_files import (
    METHODS_FILE,
    await_files,
    commit_checkpoint,
    find_damage,
    list_files,
    newest_intact_checkpoint,
    read_method_states,
    read_pointer,
)
from ippo_cli.runs.folder import MANIFEST, checkpoint_name, list_checkpoints
from ippo_cli.runs.random_streams import restore_rng, rng_state
from ippo_cli.training.algorithm_state import AlgorithmState
from ippo_cli.training.checkpoint import (
    MAX_FAILURES_IN_A_ROW,
    CheckpointManager,
    TrainingProgress,
    TrainingState,
    collect_failures,
)
from ippo_cli.training.targets import Algorithm

MakeCheckpoint = Callable[..., Path]
ALGORITHM = load_config(["algorithm=rae"]).algorithm


def commit_all(temporary: Path, final: Path) -> None:
    """Commit as one rank that wrote every file."""
    commit_checkpoint(
        temporary, final, list_files(temporary, (file for file in temporary.rglob("*") if file.is_file()))
    )


@pytest.fixture
def checkpoint(tmp_path: Path) -> MakeCheckpoint:
    """A function that creates committed checkpoints with two files."""

    def make(iteration: int) -> Path:
        temporary = tmp_path / (checkpoint_name(iteration) + ".tmp")
        (temporary / "low" / "actor").mkdir(parents=True)
        (temporary / "low" / "actor" / "weights").write_bytes(bytes(range(256)) * 40)
        (temporary / "state.json").write_text(json.dumps({"iteration": iteration}))
        commit_all(temporary, tmp_path / checkpoint_name(iteration))
        return tmp_path / checkpoint_name(iteration)

    return make


def test_commit_renames_folder_and_lists_files(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    made = checkpoint(5)
    assert made.name == "step_00000005"
    assert [path.name for path in tmp_path.iterdir()] == [made.name]
    listed = json.loads((made / MANIFEST).read_text())["files"]
    assert set(listed) == {"low/actor/weights", "state.json"}
    assert listed["low/actor/weights"]["bytes"] == 256 * 40
    assert find_damage(made) is None


def test_commit_replaces_damaged_checkpoint(checkpoint: MakeCheckpoint) -> None:
    (checkpoint(5) / "state.json").write_text("changed")
    assert find_damage(checkpoint(5)) is None


def flip(made: Path) -> None:
    data = bytearray((made / "low/actor/weights").read_bytes())
    data[5000] ^= 1
    (made / "low/actor/weights").write_bytes(data)


def truncate(made: Path) -> None:
    (made / "low/actor/weights").write_bytes((made / "low/actor/weights").read_bytes()[:-1])


def remove(made: Path) -> None:
    (made / "state.json").unlink()


def remove_folder(made: Path) -> None:
    shutil.rmtree(made / "low")


def add(made: Path) -> None:
    (made / "low" / "more").write_text("")


def swap_for_a_folder(made: Path) -> None:
    (made / "state.json").unlink()
    (made / "state.json").mkdir()


def dangle(made: Path) -> None:
    (made / "state.json").unlink()
    (made / "state.json").symlink_to(made / "nowhere")


def write_manifest(text: str) -> Callable[[Path], None]:
    def write(made: Path) -> None:
        (made / MANIFEST).write_text(text)

    return write


def unlist(made: Path) -> None:
    manifest = json.loads((made / MANIFEST).read_text())
    del manifest["files"]["state.json"]
    (made / MANIFEST).write_text(json.dumps(manifest))


DAMAGES = {
    "one bit flipped": (flip, "low/actor/weights has changed"),
    "one byte cut off": (truncate, "low/actor/weights has changed"),
    "a file missing": (remove, "missing or additional: state.json"),
    "a folder missing": (remove_folder, "missing or additional: low/actor/weights"),
    "a file more": (add, "missing or additional: low/more"),
    "a folder for a file": (swap_for_a_folder, "missing or additional: state.json"),
    "a link to nowhere": (dangle, "state.json cannot be read"),
    "a file not listed": (unlist, "missing or additional: state.json"),
    "an empty manifest": (write_manifest(""), "manifest.json cannot be read"),
    "half a manifest": (write_manifest('{"files": {"state.json": {"byt'), "manifest.json cannot be read"),
    "a manifest of another kind": (write_manifest("[1, 2]"), "manifest.json cannot be read"),
    "a manifest without files": (write_manifest("{}"), "manifest.json cannot be read"),
    "a manifest with a list": (write_manifest('{"files": ["state.json"]}'), "manifest.json cannot be read"),
    "a manifest with bare names": (write_manifest('{"files": {"state.json": 3}}'), "manifest.json cannot be read"),
    "a manifest with no numbers": (
        write_manifest('{"files": {"state.json": {"bytes": null, "sha256": ""}}}'),
        "manifest.json cannot be read",
    ),
    "a manifest that is no text": (lambda made: (made / MANIFEST).write_bytes(b"\xff\xfe\x00"), "cannot be read"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damage_is_reported_and_skipped(
    damage: str, checkpoint: MakeCheckpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older, newer = checkpoint(4), checkpoint(6)
    assert newest_intact_checkpoint(tmp_path) == newer
    harm, result = DAMAGES[damage]
    harm(newer)
    assert result in str(find_damage(newer))
    assert newest_intact_checkpoint(tmp_path) == older
    assert f"warning: {newer} is damaged" in capsys.readouterr().out


def test_folder_without_manifest_is_not_a_checkpoint(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    made = checkpoint(3)
    (tmp_path / "step_00000009").mkdir()
    for name in ("step_abc", "step_00000010.tmp", "step_", "other", "step_00000011.bak"):
        shutil.copytree(made, tmp_path / name)
    assert list_checkpoints(tmp_path) == [made]
    assert newest_intact_checkpoint(tmp_path) == made


def test_checkpoints_are_sorted_numerically(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    made = checkpoint(1)
    for name in ("step_9", "step_10", "step_100000000"):
        shutil.copytree(made, tmp_path / name)
    assert [path.name for path in list_checkpoints(tmp_path)] == [
        "step_00000001",
        "step_9",
        "step_10",
        "step_100000000",
    ]


def test_no_checkpoint_if_none_is_intact(checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    assert newest_intact_checkpoint(tmp_path) is None
    assert newest_intact_checkpoint(tmp_path / "nowhere") is None
    flip(checkpoint(1))
    assert newest_intact_checkpoint(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "3",
        '"step_00000001"',
        "{}",
        '{"checkpoint": 5}',
        '{"checkpoint": null}',
        '{"checkpoint": "step_00000002"}',
    ],
)
def test_invalid_pointer_is_none(text: str, checkpoint: MakeCheckpoint, tmp_path: Path) -> None:
    made = checkpoint(1)
    (tmp_path / "best.json").write_text(text)
    assert read_pointer(tmp_path, "best") is None
    assert read_pointer(tmp_path, "latest") is None
    assert newest_intact_checkpoint(tmp_path) == made, "the folders themselves say what is there"
    (tmp_path / "best.json").write_text('{"checkpoint": "step_00000001"}')
    assert read_pointer(tmp_path, "best") == made


def state(iteration: int) -> TrainingState:
    """A run's state without agents: everything except weights."""
    return TrainingState(
        team=Team(agents={}, learners=[]),
        algorithm=Algorithm(config=ALGORITHM, num_generations=1, seed=0),
        moments={},
        progress=TrainingProgress(iteration=iteration, metrics_bytes=10 * iteration),
        run=RunState(iterations=iteration),
        rng=rng_state(),
    )


def checkpoints(
    folder: Path, *, every: int = 1, every_seconds: float | None = None, keep: int = 2, best: bool = True
) -> CheckpointManager:
    weights = CheckpointWeights.adapter
    return CheckpointManager(
        folder,
        CheckpointConfig(
            every=every,
            every_seconds=every_seconds,
            keep=keep,
            best=best,
            weights=weights,
            optimizer=True,
            save_deadline=None,
            reshard=False,
        ),
    )


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_newest_and_best_are_kept(tmp_path: Path) -> None:
    made = checkpoints(tmp_path)
    for iteration in range(1, 7):
        assert made.save(state(iteration), best=iteration in (1, 3))
    assert names(tmp_path) == ["best.json", "latest.json", checkpoint_name(3), checkpoint_name(5), checkpoint_name(6)]
    assert read_pointer(made.folder, "best") == made.folder / checkpoint_name(3)
    assert read_pointer(made.folder, "latest") == made.folder / checkpoint_name(6)


def test_only_newest_are_kept_without_best(tmp_path: Path) -> None:
    checkpoints(tmp_path).save(state(7), best=True)
    made = checkpoints(tmp_path, keep=3, best=False)
    for iteration in range(8, 13):
        made.save(state(iteration), best=iteration == 8)
    assert names(tmp_path) == ["latest.json", checkpoint_name(10), checkpoint_name(11), checkpoint_name(12)]


def test_improvement_is_due_only_if_best_is_kept(tmp_path: Path) -> None:
    for best in (True, False):
        made = checkpoints(tmp_path, every=0, best=best)
        assert made.is_due(3, last=False, improved=True) == best
        assert made.is_due(7, last=True, improved=True)


def test_saved_iteration_becomes_best_without_rewrite(tmp_path: Path) -> None:
    made = checkpoints(tmp_path)
    made.save(state(1))
    before = (made.folder / checkpoint_name(1) / MANIFEST).stat().st_mtime_ns
    made.save(state(1), best=True)
    assert (made.folder / checkpoint_name(1) / MANIFEST).stat().st_mtime_ns == before
    assert read_pointer(made.folder, "best") == made.folder / checkpoint_name(1)


@pytest.mark.parametrize(("every", "due"), [(0, [7]), (1, list(range(1, 8))), (3, [3, 6, 7]), (9, [7])])
def test_due_at_planned_iterations_and_at_the_end(every: int, due: list[int], tmp_path: Path) -> None:
    made = checkpoints(tmp_path, every=every)
    assert [iteration for iteration in range(1, 8) if made.is_due(iteration, last=iteration == 7)] == due


def test_due_by_time_since_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("ippo_cli.training.checkpoint.time", SimpleNamespace(monotonic=lambda: now))
    made = checkpoints(tmp_path, every=5, every_seconds=60)
    due = []
    for iteration in range(1, 20):
        now += 25
        if made.is_due(iteration, last=False):
            due.append(iteration)
            assert made.save(state(iteration))
    assert due == [3, 5, 8, 10, 13, 15, 18], "75 s after the last one, or where it is due by iterations"


def test_failed_checkpoint_by_time_is_not_retried_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("ippo_cli.training.checkpoint.time", SimpleNamespace(monotonic=lambda: now))
    made = checkpoints(tmp_path, every=0, every_seconds=60)
    now, full = 61.0, state(1)
    full.progress.metrics_bytes = None
    assert made.is_due(1, last=False)
    assert not made.save(full)
    assert not made.is_due(2, last=False)


def test_temporary_folders_are_removed(tmp_path: Path) -> None:
    stale = tmp_path / "checkpoints" / (checkpoint_name(4) + ".tmp")
    (stale / "low").mkdir(parents=True)
    (stale / MANIFEST).write_text("{}")
    made = checkpoints(tmp_path)
    assert names(tmp_path) == []
    with pytest.raises(ResumeError, match="no intact checkpoint") as raised:
        made.load(state(0), made.find_newest_intact())
    assert raised.value.exit_code == 14


def test_load_restores_progress_coefficients_and_rng(tmp_path: Path) -> None:
    saved = state(3)
    saved.progress.row = {"iteration": 3, "low/score/mean": 0.25}
    saved.algorithm.state = AlgorithmState(
        kl_coef={"low": 0.125, "high": 0.1 + 0.2}, methods={"role_baseline": {"low": 0.7, "high/second": -0.1}}
    )
    saved.run.evaluation = {"best": {"iteration": 2, "score": 0.5}}
    saved.run.wall_seconds = 12.5
    checkpoints(tmp_path).save(saved)
    expected = (random.random(), numpy.random.rand(), torch.rand(3))
    fresh = state(0)
    again = checkpoints(tmp_path)
    assert again.find_newest_intact() == tmp_path / "checkpoints" / checkpoint_name(3)
    again.load(fresh, again.find_newest_intact())
    assert fresh.progress == saved.progress
    assert fresh.algorithm.state == saved.algorithm.state
    assert (fresh.run.evaluation, fresh.run.wall_seconds, fresh.run.iterations) == (saved.run.evaluation, 12.5, 3)
    assert (random.random(), numpy.random.rand()) == expected[:2]
    assert torch.equal(torch.rand(3), expected[2])


def test_states_of_methods_of_the_earlier_layout(tmp_path: Path) -> None:
    pool = {"snapshots": [[2, {}]], "games": {}}
    stored = {"kl_coef": {}, "role_baselines": {"low": 0.5}, "recent_scores": {}, "partners": pool}
    (tmp_path / "state.json").write_text(json.dumps(stored))
    (tmp_path / "curriculum.json").write_text(json.dumps({"rows": [3], "rates": [0.5], "unlocked": 0}))
    assert read_method_states(tmp_path) == {
        "role_baseline": {"low": 0.5},
        "opponent_pool": pool,
        "curriculum": {"rows": [3], "rates": [0.5], "unlocked": 0},
    }
    (tmp_path / "state.json").write_text(json.dumps(stored | {"partners": {"snapshots": [], "games": {}}}))
    assert "opponent_pool" not in read_method_states(tmp_path), "runs without a pool stored an empty one"


def test_empty_state_of_an_earlier_version(tmp_path: Path) -> None:
    (tmp_path / METHODS_FILE).write_text(json.dumps({"advantages": {"low": {"__empty__": True}, "high": {"a": 1}}}))
    assert read_method_states(tmp_path) == {"advantages": {"low": {}, "high": {"a": 1}}}


def test_load_skips_damaged_checkpoint(tmp_path: Path) -> None:
    made = checkpoints(tmp_path)
    made.save(state(1))
    made.save(state(2))
    (made.folder / checkpoint_name(2) / "state.json").write_text("{}")
    fresh = state(0)
    again = checkpoints(tmp_path)
    again.load(fresh, again.find_newest_intact())
    assert fresh.progress.iteration == 1
    again.save(state(2))
    assert newest_intact_checkpoint(made.folder) == made.folder / checkpoint_name(2)


def test_damaged_checkpoints_do_not_count_as_kept(tmp_path: Path) -> None:
    made = checkpoints(tmp_path, keep=3)
    for iteration in (4, 6, 8):
        made.save(state(iteration), best=iteration == 8)
    for iteration in (6, 8):
        (made.folder / checkpoint_name(iteration) / "state.json").write_text("{}")
    again = checkpoints(tmp_path)
    again.load(state(0), again.find_newest_intact())
    again.save(state(4))  # preempted immediately
    assert names(tmp_path) == ["best.json", "latest.json", checkpoint_name(4), checkpoint_name(6), checkpoint_name(8)]
    again.save(state(5))
    assert names(tmp_path) == ["best.json", "latest.json", checkpoint_name(4), checkpoint_name(5)]
    again.save(state(6))
    assert newest_intact_checkpoint(made.folder) == made.folder / checkpoint_name(6)
    assert [path.name for path in list_checkpoints(made.folder)] == [checkpoint_name(5), checkpoint_name(6)]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [("schema_version", 99, "a different checkpoint format"), ("world_size", 2, "set launch.processes=2")],
)
def test_other_format_or_world_size_is_rejected(key: str, value: int, message: str, tmp_path: Path) -> None:
    made = checkpoints(tmp_path)
    made.save(state(1))
    folder = made.folder / checkpoint_name(1)
    stored = json.loads((folder / "state.json").read_text())
    temporary = folder.rename(folder.with_name("changed.tmp"))
    (temporary / MANIFEST).unlink()
    (temporary / "state.json").write_text(json.dumps({**stored, key: value}))
    commit_all(temporary, folder)
    with pytest.raises(ResumeError, match=message):
        made.load(state(0), made.find_newest_intact())


def test_rng_state_is_restored() -> None:
    random.gauss(0, 1)  # leaves one number of a pair, which is part of the state
    numpy.random.randn()
    kept = json.loads(json.dumps(rng_state()))
    first = drawn()
    restore_rng(kept)
    assert drawn() == first


def drawn() -> tuple[object, ...]:
    return random.gauss(0, 1), random.random(), numpy.random.randn(), numpy.random.rand(), torch.rand(4).tolist()


@contextmanager
def full_disk(limit: int) -> Iterator[None]:
    """Limit the size of every file that this process writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_keeps_previous_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = checkpoints(tmp_path)
    made.save(state(1))
    with full_disk(1000):
        assert not made.save(state(2))
    assert "warning: checkpoint not saved (" in capsys.readouterr().out
    assert names(tmp_path) == ["latest.json", checkpoint_name(1)]
    assert newest_intact_checkpoint(made.folder) == made.folder / checkpoint_name(1)
    assert made.save(state(2))
    assert newest_intact_checkpoint(made.folder) == made.folder / checkpoint_name(2)


def test_full_disk_ends_run_with_exit_code_13(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = checkpoints(tmp_path)
    with full_disk(1000):
        for _ in range(MAX_FAILURES_IN_A_ROW - 1):
            assert not made.save(state(1))
        with pytest.raises(StorageError, match="cannot save checkpoints, 3 failures in a row") as raised:
            made.save(state(1))
    assert raised.value.exit_code == 13
    assert "Traceback" not in capsys.readouterr().err


def test_success_resets_failure_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = checkpoints(tmp_path)
    for iteration in range(1, 9):
        if iteration % MAX_FAILURES_IN_A_ROW == 0:
            assert made.save(state(iteration))
        else:
            with full_disk(1000):
                assert not made.save(state(iteration))
    capsys.readouterr()


def test_failed_commit_is_a_failed_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = checkpoints(tmp_path)
    (made.folder / checkpoint_name(2)).write_text("in the way")
    assert not made.save(state(2))
    assert "not saved" in capsys.readouterr().out
    assert names(tmp_path) == [checkpoint_name(2)]


def test_failed_pointer_keeps_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = checkpoints(tmp_path)
    (made.folder / "latest.json").mkdir()
    assert made.save(state(2))
    assert "warning: " in capsys.readouterr().out
    assert newest_intact_checkpoint(made.folder) == made.folder / checkpoint_name(2)


def test_files_of_other_ranks_may_appear_late(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("123")
    wrote = [list_files(tmp_path, [tmp_path / "mine"]), {"low/theirs": {"bytes": 5, "sha256": ""}}]

    def write() -> None:
        (tmp_path / "low").mkdir()
        (tmp_path / "low" / "theirs").write_text("12345")

    late = threading.Timer(0.3, write)
    late.start()
    await_files(tmp_path, wrote)
    late.join()


@pytest.mark.parametrize("size", [None, 4])
def test_files_of_other_ranks_must_be_complete(
    size: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_files, "VISIBILITY_TIMEOUT_S", 0.2)
    if size is not None:
        (tmp_path / "theirs").write_text("x" * size)
    wrote = [{}, {"theirs": {"bytes": 5, "sha256": ""}}]
    with pytest.raises(StorageError, match="rank 1 wrote theirs, but rank 0 does not see it"):
        await_files(tmp_path, wrote)


def test_unknown_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("123")
    (tmp_path / "other").write_text("")
    with pytest.raises(StorageError, match="files that no rank wrote: other"):
        await_files(tmp_path, [list_files(tmp_path, [tmp_path / "mine"])])


def test_disk_full_message_is_kept_for_every_writer(tmp_path: Path) -> None:
    failures: list[str] = []
    with full_disk(1000), collect_failures(failures), (tmp_path / "weights").open("wb") as file:
        torch.save(torch.zeros(100_000), file)  # raises its own RuntimeError
    with collect_failures(failures):
        raise ValueError("not the disk's\nfault")
    assert failures == ["File too large", "ValueError: not the disk's fault"]


def test_save_requires_written_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, waiting = checkpoints(tmp_path), state(2)
    waiting.progress.metrics_bytes = None
    assert not made.save(waiting)
    assert "cannot write rows of metrics.jsonl" in capsys.readouterr().out
    assert names(tmp_path) == []


def test_too_small_disk_is_rejected_before_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = checkpoints(tmp_path, every=5)  # 2 are kept, and one more exists while it is written
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(PreflightError, match="up to 3 checkpoints exist at once") as raised:
        made.check_disk_space(int(free / 2.5), 100)
    assert raised.value.exit_code == 3
    assert "save less often than checkpoint.every=5, or save no optimizer states" in str(raised.value)
    made.check_disk_space(int(free / 2.5), 10)
    assert capsys.readouterr().out.count("the best checkpoint may not fit") == 1
    made.check_disk_space(int(free / 4.5), 100)
    assert capsys.readouterr().out == ""
    made.save(state(1))
    made.save(state(2))
    made.check_disk_space(int(free / 2.5), 100)


def test_disk_too_small_for_the_last_checkpoint_has_remedies_that_help(tmp_path: Path) -> None:
    made = checkpoints(tmp_path, every=0, best=False, every_seconds=None)
    with pytest.raises(PreflightError, match="up to 1 checkpoint exists at once; free disk space") as raised:
        made.check_disk_space(shutil.disk_usage(tmp_path).free * 2, 100)
    assert "checkpoint.optimizer=false" in str(raised.value)
    assert "less often" not in str(raised.value)  # checkpoint.every=0 saves once, at the end


def test_possibly_too_small_disk_warns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = int(shutil.disk_usage(tmp_path).free / 2.5)
    made = checkpoints(tmp_path, every=0, every_seconds=600, best=False)
    made.check_disk_space(size, 1)
    assert capsys.readouterr().out == ""
    made.check_disk_space(size, 100)
    assert (
        "up to 3 checkpoints exist at once if iterations are long (checkpoint.every_seconds=600"
        in capsys.readouterr().out
    )


def test_best_pointer_starts_with_initial_weights(tmp_path: Path) -> None:
    made = checkpoints(tmp_path)
    made.mark_initial_best()
    made.save(state(1))
    assert json.loads((made.folder / "best.json").read_text()) == {"checkpoint": "initial"}
    made.save(state(2), best=True)
    assert json.loads((made.folder / "best.json").read_text()) == {"checkpoint": checkpoint_name(2)}
