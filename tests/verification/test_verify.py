"""Iterations that are executed again equal those of the run, and an edit of what they wrote is found."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from small import new_run, small_config, train, train_on_two_ranks

from ippo_cli.config.errors import ConfigError, ResumeError
from ippo_cli.runs.folder import activate_resumed_config, lock_folder, write_start_files
from ippo_cli.runs.history import HISTORY, hash_file
from ippo_cli.training.process import run_training
from ippo_cli.verification.certificate import Verification, format_verification, write_certificate
from ippo_cli.verification.comparison import compare
from ippo_cli.verification.recorded import RecordedRun
from ippo_cli.verification.selection import Execution, describe_bases, draw_iterations, find_bases, plan_executions
from ippo_cli.verification.verify import Selection, split_segments, verify_run

FINAL = "checkpoints/step_00000003"
MOMENTS = (
    "reward.processor=[running_zscore]",
    "algorithm=ppo",
    "algorithm.kl.reward.coef=0.1",
    "algorithm.kl.reward.target=0.05",
    "algorithm.kl.reward.horizon=10000",
)
WEIGHTS = f"{FINAL}/solo/actor/model.safetensors"


def verify(folder: Path, *iterations: int, count: int = 0) -> Verification:
    return verify_run(folder, Selection(iterations=iterations, count=count), ["ippo-verify"], lambda text: None)


def hashes(folder: Path) -> dict[str, str]:
    return {str(file): hash_file(file) for file in folder.rglob("*") if file.is_file()}


def remove_history(folder: Path) -> None:
    """Make a run look like one of an earlier version, checkpoints included."""
    (folder / HISTORY).unlink()
    for checkpoint in folder.glob("checkpoints/step_*"):
        state = json.loads((checkpoint / "state.json").read_text())
        del state["progress"]["history"]
        (checkpoint / "state.json").write_text(json.dumps(state))
        update_manifest(checkpoint)


def update_manifest(checkpoint: Path) -> None:
    """Write the hashes of edited files into the manifest, as somebody who hides an edit would."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for name in manifest["files"]:
        file = checkpoint / name
        manifest["files"][name] = {"bytes": file.stat().st_size, "sha256": hash_file(file)}
    (checkpoint / "manifest.json").write_text(json.dumps(manifest))


def test_initial_weights_and_kept_checkpoints_are_bases(run_copy: Path):
    run = RecordedRun(run_copy)
    bases = find_bases(run)
    assert bases == [0, 2, 3]
    assert describe_bases(run, bases) == "1 to 2 from the initial weights, 3 to 3 from step 2"
    assert plan_executions(run, bases, [3, 1, 1], span=20) == [Execution(1, 2, [1]), Execution(3, 3, [3])]
    assert plan_executions(run, bases, [1], span=1) == [Execution(1, 1, [1])]
    with pytest.raises(ConfigError, match="iterations=4 cannot be executed again; iterations 1 to 2 from"):
        plan_executions(run, bases, [4], span=20)
    (run_copy / "initial/solo/model.safetensors").unlink()
    assert find_bases(run) == [2, 3]
    (run_copy / "checkpoints/step_00000002/state.json").write_text("{}")
    assert find_bases(run) == [3]


def test_random_iterations_are_near_their_bases(run_copy: Path):
    run = RecordedRun(run_copy)
    assert draw_iterations(run, [0, 2], 9, seed=0, span=1) == [1, 3]
    assert draw_iterations(run, [0, 2], 9, seed=0, span=20) == [1, 2, 3]
    drawn = {tuple(draw_iterations(run, [0, 2], 1, seed, span=20)) for seed in range(20)}
    assert drawn == {(1,), (2,), (3,)}


def test_an_active_run_is_refused(run_copy: Path):
    with lock_folder(run_copy), pytest.raises(ResumeError, match="in use by another process"):
        verify(run_copy)


@pytest.mark.slow
@pytest.mark.core
def test_a_run_is_verified_and_not_changed(run_copy: Path):
    before = hashes(run_copy)
    found = verify(run_copy, 3)
    assert (found.is_verified, found.limits) == (True, [])
    (comparison,) = found.comparisons
    assert [*comparison.rows] == ["3"]
    assert {*comparison.samples} == {"train_00000003.jsonl", "eval_00000003.jsonl"}
    assert len(comparison.weights) == 2  # actor and critic
    assert all(recorded == executed for recorded, executed in comparison.weights.values())
    assert found.environments[0]["changes"] == []
    assert hashes(run_copy) == before
    target = run_copy / "verification.json"
    write_certificate(found, target)
    known = json.loads(target.read_text())
    assert (known["result"], known["executions"][0]["from"]) == ("verified", "step 2")
    assert format_verification(found, target).splitlines()[-1].startswith("verified: ")


@pytest.mark.slow
def test_a_run_without_samples_of_its_first_iteration_is_verified(tmp_path: Path):
    folder = train(tmp_path, "task=sorting_solo", "num_iterations=2", "evaluation.every=0", "tracker.samples_every=9")
    assert sorted(file.name for file in (folder / "samples").glob("train_*")) == [
        "train_00000001.jsonl",
        "train_00000002.jsonl",
    ]
    (folder / "samples" / "train_00000001.jsonl").unlink()  # as earlier versions
    remove_history(folder)
    found = verify(folder, 1, 2)
    assert [difference for comparison in found.comparisons for difference in comparison.differences] == []


@pytest.mark.slow
@pytest.mark.core
def test_edits_that_no_hash_covers_are_found_by_execution(run_copy: Path):
    remove_history(run_copy)
    rows = (run_copy / "metrics.jsonl").read_text()
    last = rows.splitlines(keepends=True)[-1]
    edited = re.sub(r'"solo/policy/entropy": [\d.]+', '"solo/policy/entropy": 0.5', last)
    (run_copy / "metrics.jsonl").write_text(rows.replace(last, edited))
    sample = run_copy / "samples/train_00000003.jsonl"
    sample.write_text(re.sub(r'"score": [\d.]+', '"score": 0.987', sample.read_text(), count=1))
    weights = load_file(run_copy / WEIGHTS)
    name = sorted(weights)[2]
    weights[name].view(-1)[5] += 0.25
    save_file(weights, run_copy / WEIGHTS, metadata={"format": "pt"})
    update_manifest(run_copy / FINAL)
    found = verify(run_copy, 3)
    row, score, tensor = map(str, found.differences)
    assert row.startswith("metrics.jsonl, line 4, solo/policy/entropy: 0.5 in the run, 2.")
    assert re.match(r"samples/train_00000003.jsonl, line 1, agents.solo.score: 0.987 in the run, 0", score)
    assert tensor.startswith(f"{WEIGHTS}, tensor {name}[")
    assert "1 of " in tensor
    assert "the run recorded no number of threads" not in str(found.limits)  # launch.threads is set


@pytest.mark.slow
def test_a_run_resumed_with_other_values_is_executed_with_both(tmp_path: Path):
    """Its second part has another learning rate; the first one was evaluated at its end."""
    keys = ["task=sorting_solo", "num_iterations=4", "evaluation.every=0", "checkpoint.every=0"]
    config, folder = new_run(tmp_path, *keys, "max_iterations_this_run=2")
    run_training(config, folder, resumed=False)
    more = [*keys, "actor.learning_rate=0.01"]
    config, yaml = small_config(tmp_path, *more)
    write_start_files(folder, yaml, more, ["ippo-train"], resumed=True)
    run_training(config, folder, resumed=True)
    run = RecordedRun(folder)
    assert [start.iteration for start in run.starts] == [0, 2]
    assert [segment.last for segment in split_segments(run, Execution(1, 4, [4]))] == [2, 4]
    for checkpoint in run.checkpoints.values():
        if checkpoint.name != "step_00000004":
            checkpoint.rename(checkpoint.with_name(f"{checkpoint.name}.tmp"))
    found = verify(folder, 4)
    assert [str(difference) for difference in found.differences] == []
    assert found.is_verified
    assert len(found.comparisons[0].rows) == 5
    assert len(found.comparisons[0].weights) == 2


@pytest.mark.slow
def test_a_run_on_two_ranks_is_verified(tmp_path: Path):
    folder = train_on_two_ranks(tmp_path, "num_iterations=3", "deepspeed=zero2")
    found = verify(folder, 3)
    assert ([*map(str, found.differences)], found.failures) == ([], [])
    assert found.environments[0]["executed"]["world_size"] == 2
    assert len(found.comparisons[0].weights) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        ("+experiment=self_play", "team.opponent_pool.every=1"),
        ("team=shared_base", "actor=tiny_lora", "critic=adapter"),
        ("task=gymnasium", "task.env_id=FrozenLake-v1"),
        ("algorithm=grpo", "critic=none", "rollout.num_generations=4", "algorithm.kl.loss.coef=0.1"),
        MOMENTS,
    ],
    ids=["opponents", "adapters", "environment", "grpo", "moments"],
)
def test_runs_of_other_kinds_are_verified(keys: tuple[str, ...], tmp_path: Path):
    folder = train(tmp_path, *keys, "num_iterations=3", "tracker.samples_every=1")
    found = verify(folder, 1, 3)
    assert ([*map(str, found.differences)], found.failures) == ([], [])
    assert [comparison.execution.first for comparison in found.comparisons] == [1, 3]


def test_the_history_of_a_resumed_run_has_both_starts(tmp_path: Path):
    keys = ["task=sorting_solo", "num_iterations=2"]
    config, folder = new_run(tmp_path, *keys, "max_iterations_this_run=1")
    run_training(config, folder, resumed=False)
    activate_resumed_config(folder)
    config, _ = new_run(tmp_path, *keys)
    run_training(config, folder, resumed=True)
    lines = RecordedRun(folder).history
    assert [(line.iteration, line.is_start) for line in lines] == [
        (0, True),
        (0, False),
        (1, False),
        (1, True),
        (2, False),
    ]
    assert ["config" in line.content for line in lines if line.is_start] == [True, False]
    assert verify(folder).is_verified


def test_a_run_without_hashes_and_executions_is_not_verified(run_copy: Path):
    for name in ("initial", "checkpoints"):
        shutil.rmtree(run_copy / name)
    (run_copy / HISTORY).unlink()
    found = verify(run_copy, count=2)
    assert found.executable == "none"
    assert not found.is_verified
    assert "failed: nothing was compared" in format_verification(found, run_copy / "verification.json")


def test_missing_rows_and_checkpoints_of_an_execution_are_differences(run_copy: Path, tmp_path: Path):
    executed = tmp_path / "executed"
    (executed / "samples").mkdir(parents=True)
    (executed / "metrics.jsonl").write_text("")
    found = compare(RecordedRun(run_copy), RecordedRun(executed), Execution(3, 3, [3]), 0.0)
    assert [str(difference) for difference in found.differences if "samples" not in difference.file] == [
        "metrics.jsonl, line 4: the execution writes no such row",
        f"{FINAL}: the execution writes no such checkpoint",
    ]
