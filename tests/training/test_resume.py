"""A run that is stopped anywhere and resumed equals an uninterrupted run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from small import final_weights, new_run, rows, stopping_reward, train

from ippo_cli.cli.train import main
from ippo_cli.compose import exits
from ippo_cli.config.errors import Preempted
from ippo_cli.runs.folder import START_LOCK, lock_folder
from ippo_cli.training.process import run_training

ITERATIONS = 3  # one before the checkpoint in the middle, the one of the checkpoint, and the last one
CALLS = 3 * 2 + ITERATIONS  # evaluations before, in the middle and at the end, sampled and greedy; one per iteration


def overrides(root: Path) -> list[str]:
    return [
        *stopping_reward(root),
        f"num_iterations={ITERATIONS}",
        "algorithm=ppo",
        "algorithm.mini_batch_size=8",
        "algorithm.kl.reward.coef=0.1",
        "algorithm.kl.reward.target=0.05",
        "algorithm.kl.reward.horizon=10000",
        "reward.processor=[running_zscore]",
        "actor.lr_schedule=cosine",
        "actor.warmup_iterations=1",
    ]


@pytest.mark.core
@pytest.mark.slow
def test_stop_at_any_reward_call_and_resume_exactly(tmp_path, monkeypatch):
    monkeypatch.delenv("STOP_AT_CALL", raising=False)
    whole = train(tmp_path, *overrides(tmp_path))
    expected_rows, expected_weights = rows(whole), final_weights(whole)
    assert [row["iteration"] for row in expected_rows] == list(range(ITERATIONS + 1))
    for call in range(1, CALLS + 1):
        config, folder = new_run(tmp_path, *overrides(tmp_path))
        monkeypatch.setenv("STOP_AT_CALL", str(call))
        try:
            run_training(config, folder, resumed=False)
            assert call == CALLS, "only the last call comes too late to stop anything"
        except Preempted:
            left = json.loads((folder / "run.json").read_text())
            assert left["state"] == "preempted"
            written = (folder / "metrics.jsonl").exists()
            assert left["iterations"] == (rows(folder)[-1]["iteration"] if written else 0)
            monkeypatch.delenv("STOP_AT_CALL")
            run_training(config, folder, resumed=True)
        assert rows(folder) == expected_rows, f"stopped at call {call}"
        weights = final_weights(folder)
        assert weights.keys() == expected_weights.keys()
        for name, value in expected_weights.items():
            assert torch.equal(weights[name], value), f"{name} differs after a stop at call {call}"
        assert json.loads((folder / "run.json").read_text())["state"] == "done"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "call"), [(["algorithm=remax"], 3), (["algorithm=vine_ppo", "reward.processor=[]"], 4)]
)
def test_preemption_with_additional_responses_counts_scores_once(tmp_path, monkeypatch, algorithm, call):
    monkeypatch.delenv("STOP_AT_CALL", raising=False)
    keys = [key for key in overrides(tmp_path) if not key.startswith("algorithm.")]
    keys += [*algorithm, "num_iterations=2", "evaluation.every=0"]
    whole = train(tmp_path, *keys)
    config, folder = new_run(tmp_path, *keys)
    # After two evaluations: with the scores of greedy responses in the first buffer, or of its continuations.
    monkeypatch.setenv("STOP_AT_CALL", str(call))
    with pytest.raises(Preempted):
        run_training(config, folder, resumed=False)
    monkeypatch.delenv("STOP_AT_CALL")
    run_training(config, folder, resumed=True)
    assert rows(folder) == rows(whole)


@pytest.mark.slow
def test_rejected_resume_does_not_change_the_run(tmp_path, monkeypatch, capsys):
    folder = train(tmp_path, "num_iterations=1", "evaluation.every=0")
    before = {name: (folder / name).read_text() for name in ("config.yaml", "overrides.json", "run.json")}
    monkeypatch.setattr(exits, "exit_process", sys.exit)

    def resumed(*arguments):
        monkeypatch.setattr(sys, "argv", ["ippo-train", f"resume={folder}", *arguments])
        with pytest.raises(SystemExit) as leaving:
            main()
        return leaving.value.code, " ".join(capsys.readouterr().err.split())

    code, result = resumed("launch.processes=2")
    assert code == 14
    assert "was written by 1 processes and there are 2 now" in result
    assert {name: (folder / name).read_text() for name in before} == before

    with lock_folder(folder, name=START_LOCK):  # another command resumes it, and its ranks have not started
        code, result = resumed("num_iterations=3", "algorithm.entropy_coef=0.5")
    assert code == 14
    assert "in use by another process" in result
    assert not list(folder.glob("*.next"))

    (file,) = (folder / "checkpoints").glob("step_*/state.json")
    intact = file.read_text()
    file.write_text(intact + " ")
    code, result = resumed("num_iterations=2", "algorithm.entropy_coef=0.5")
    assert code == 14
    assert "no intact checkpoint" in result
    del before["run.json"]  # its state is failed
    assert {name: (folder / name).read_text() for name in before} == before
    file.write_text(intact)
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", ["ippo-train", f"resume={folder}", "num_iterations=2"])
    with pytest.raises(SystemExit) as leaving:
        main()
    assert leaving.value.code == 0
    assert "\nnum_iterations: 1 -> 2\n" in "\n" + capsys.readouterr().out
    assert "num_iterations=2" in json.loads((folder / "overrides.json").read_text())
    assert "num_iterations: 2\n" in (folder / "config.yaml").read_text()
    assert "entropy_coef: 0.5" not in (folder / "config.yaml").read_text()
    assert not list(folder.glob("*.next"))


@pytest.mark.slow
def test_finished_run_resumes_with_more_iterations(tmp_path):
    short = train(tmp_path, "num_iterations=2")
    config, _ = new_run(tmp_path, "num_iterations=3")
    run_training(config, short, resumed=True)
    long = train(tmp_path, "num_iterations=3")
    assert rows(short) == rows(long)
    written = [json.loads(line) for line in (long / "metrics.jsonl").read_text().splitlines()]
    timed = [row["iteration"] for row in written if "time/checkpoint" in row]
    assert timed == [3], "the one of iteration 2 was written before iteration 3"
    first, second = final_weights(short), final_weights(long)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.slow
def test_resume_says_that_no_iteration_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config, folder = new_run(tmp_path, "num_iterations=2", "max_iterations_this_run=1")
    run_training(config, folder, resumed=False)
    before = rows(folder)
    run_training(config, folder, resumed=True)
    checkpoint = (folder / "checkpoints/step_00000001").relative_to(tmp_path)
    assert f"resumed from {checkpoint}: no iteration is left" in " ".join(capsys.readouterr().out.split())
    assert rows(folder) == before
    config.max_iterations_this_run = None
    run_training(config, folder, resumed=True)
    assert "no iteration is left" not in capsys.readouterr().out
    assert rows(folder)[-1]["iteration"] == 2
