"""Opponent pool: which weights act, which rows are trained on, and exact resume."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small import assert_metrics_close, final_weights, new_run, open_trainer, rows, train, train_on_two_ranks

from ippo_cli.config.errors import Preempted, ResumeError
from ippo_cli.training.methods.opponents import assign_learner, evict_snapshots, sample_opponent
from ippo_cli.training.process import run_training

SHORT = ("evaluation.every=0", "checkpoint.every=0", "actor.warmup_iterations=0", "rollout.temperature=2.0")
POOL = ("team.opponent_pool.every=2", "team.opponent_pool.size=2", "team.opponent_pool.share=0.5")
GAME = """
import os, random, signal
calls = 0

def game(example, agents):
    \"\"\"Both name a letter at once, twice; the later letter wins. Asks the run to leave in a chosen episode.\"\"\"
    global calls
    calls += 1
    if str(calls) == os.environ.get("STOP_AT_EPISODE"):
        os.kill(os.getpid(), signal.SIGTERM)
    total = dict.fromkeys(agents, 0.0)
    for _ in range(2):
        answers = yield {name: f"{example['letters']}{mark}" for name, mark in zip(agents, "<>")}
        best = max(answer[:1] for answer in answers.values())
        for name in agents:
            total[name] += (answers[name][:1] == best) - 0.5
    return total
"""


def a_game(root: Path) -> list[str]:
    """Two agents that play against each other, with letters."""
    (root / "game.py").write_text(GAME)
    return [f"task.protocol={root / 'game.py'}:game", "reward=environment", "rollout.max_new_tokens=3"]


def test_eviction_removes_snapshot_with_smallest_gap() -> None:
    assert evict_snapshots([0, 10, 20, 30], 4) == [0, 10, 20, 30]
    assert evict_snapshots([0, 10, 20, 30], 3) == [0, 20, 30]
    assert evict_snapshots([0, 20, 30, 40], 3) == [0, 20, 40]
    assert evict_snapshots([0, 10], 1) == [10]
    pool: list[int] = []
    for iteration in range(0, 1000, 10):
        pool = evict_snapshots([*pool, iteration], 5)
    assert (pool[0], pool[-1], len(pool)) == (0, 990, 5)
    assert max(b - a for a, b in pairwise(pool)) < 600


def test_learner_is_sampled_by_seed_and_alternates() -> None:
    seats = assign_learner(0, 3, 8, 0.5, ["a", "b"])
    assert sorted(seat or "" for seat in seats) == ["", "", "", "", "a", "a", "b", "b"]
    assert seats == assign_learner(0, 3, 8, 0.5, ["a", "b"])
    assert len({tuple(assign_learner(0, iteration, 8, 0.5, ["a", "b"])) for iteration in range(20)}) > 15
    odd = [assign_learner(0, iteration, 5, 0.2, ["a", "b"]) for iteration in range(4)]
    assert [next(filter(None, seat)) for seat in odd] == ["a", "b", "a", "b"]
    drawn = [sample_opponent(0, iteration, [0, 5, 9]) for iteration in range(300)]
    assert all(drawn.count(one) > 60 for one in (0, 5, 9))


@pytest.mark.slow
@pytest.mark.parametrize("team", ["independent", "shared_policy"])
def test_snapshots_act_but_are_not_trained_on(team: str, tmp_path: Path) -> None:
    with open_trainer(tmp_path, *SHORT, *POOL, f"team={team}", *a_game(tmp_path)) as trainer:
        folder, team_ = trainer.run.folder, trainer.state.team
        initial = {
            learner.name: load_file(folder / "initial" / learner.name / "model.safetensors")
            for learner in team_.learners
            if learner.is_policy
        }
        after: dict[int, dict[str, dict[str, torch.Tensor]]] = {0: initial}
        for iteration in range(3):
            experience, _ = trainer.step()
            after[iteration + 1] = {
                learner.name: {key.removeprefix("lm."): value for key, value in weights.items()}
                for learner in team_.learners
                if learner.is_policy and (weights := learner.engine.full_state_dict()) is not None
            }
        for iteration in (0, 2):
            for name, weights in after[iteration].items():
                saved = load_file(folder / "partners" / f"step_{iteration:08d}" / name / "actor" / "model.safetensors")
                assert all(torch.equal(saved[key], weights[key]) for key in saved)
                assert saved
        targets, _ = trainer.state.algorithm.compute_targets(team_, experience)
        played = [episode.partners for episode in experience.episodes]
        assert sorted(map(sorted, played)) == [[]] * 8 + [["high"]] * 4 + [["low"]] * 4
        drawn = sample_opponent(0, 2, [0, 2])
        assert trainer.state.progress.row is not None
        assert trainer.state.progress.row["team/opponents/iteration"] == drawn
        assert trainer.state.progress.row["team/opponents/fraction"] == 0.5
        for name in ("low", "high"):
            rollout, scores = experience.rollouts[name], experience.scores[name]
            for row, partners in enumerate(played):
                learns = name not in partners
                assert bool(targets[name].loss_mask[row].any()) is learns
                assert bool(rollout.response_mask[row].any()) is learns
                assert bool(scores.valid[row]) is learns
                assert not bool(scores.failed[row])
        mean = experience.scores["low"].raw.sum(dim=1)[experience.scores["low"].valid].mean()
        assert trainer.state.progress.row["low/score/mean"] == pytest.approx(float(mean), abs=1e-6)
        # The responses for the agent are those of the snapshot to these prompts, not those of the agent.
        says: dict[str, list[float]] = {"snapshot": [], "current": []}
        for name in ("low", "high"):
            holder = trainer.methods[0].policy_of_agent[name]  # type: ignore[attr-defined]
            lm = team_[name].policy.engine.module.lm
            for which, weights in (("snapshot", after[drawn][holder]), ("current", after[3][holder])):
                lm.load_state_dict(weights)
                for episode in experience.episodes:
                    for turn in episode.turns_of_agent(name) if name in episode.partners else []:
                        ids = torch.tensor([turn.prompt + turn.completion.ids.tolist()])
                        with torch.no_grad():
                            logits = lm(ids).logits[0, len(turn.prompt) - 1 : -1] / 2.0
                        result = logits.log_softmax(dim=-1).gather(1, turn.completion.ids[:, None])[:, 0]
                        says[which].append(float((result - turn.completion.logprobs).abs().max()))
        assert max(says["snapshot"]) < 1e-4
        assert max(says["current"]) > 1e-3


@pytest.mark.core
@pytest.mark.slow
def test_run_with_pool_and_ratings_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STOP_AT_EPISODE", raising=False)
    keys = [*SHORT, *POOL, "num_iterations=5", "team=shared_policy", "team.opponent_pool.elo=true", *a_game(tmp_path)]
    whole = train(tmp_path, *keys)
    config, folder = new_run(tmp_path, *keys)
    monkeypatch.setenv("STOP_AT_EPISODE", "90")  # in the fifth iteration, for which a snapshot was taken
    with pytest.raises(Preempted):
        run_training(config, folder, resumed=False)
    assert rows(folder)[-1]["iteration"] == 4
    monkeypatch.delenv("STOP_AT_EPISODE")
    run_training(config, folder, resumed=True)
    assert rows(folder) == rows(whole)
    assert (folder / "elo.json").read_text() == (whole / "elo.json").read_text()
    expected, found = final_weights(whole, ["shared"]), final_weights(folder, ["shared"])
    assert all(torch.equal(found[name], value) for name, value in expected.items())
    there = [sorted(path.name for path in (run / "partners").iterdir()) for run in (whole, folder)]
    assert there[0][-1] == "step_00000004"
    assert set(there[0]) <= set(there[1])
    table = {row["player"]: row for row in json.loads((folder / "elo.json").read_text())}
    assert list(table) == ["shared@0", "shared@2", "shared@4", "shared"]
    assert table["shared@0"]["elo"] == 0.0
    assert sum(row["won"] - row["lost"] for row in table.values()) == 0
    assert sum(row["won"] + row["drawn"] + row["lost"] for row in table.values()) == 2 * 8 * 5
    weights = folder / "partners" / "step_00000004" / "shared" / "actor" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    changed = r"is missing or has changed.*restore the file, resume without opponents \(team.opponent_pool.every=0\)"
    with pytest.raises(ResumeError, match=changed):
        run_training(replace(config, num_iterations=6), folder, resumed=True)
    weights.unlink()
    with pytest.raises(ResumeError, match=changed):
        run_training(replace(config, num_iterations=6), folder, resumed=True)


@pytest.mark.slow
def test_checkpoint_keeps_the_pool_of_a_resume_without_opponents(tmp_path: Path) -> None:
    config, folder = new_run(tmp_path, *SHORT, *POOL, "num_iterations=2", "checkpoint.every=1")
    run_training(replace(config, max_iterations_this_run=1), folder, resumed=False)
    without = replace(config.team, opponent_pool=replace(config.team.opponent_pool, every=0))
    run_training(replace(config, team=without), folder, resumed=True)
    states = [json.loads(file.read_text()) for file in sorted(folder.glob("checkpoints/step_*/methods.json"))]
    assert states[-1]["opponent_pool"] == states[0]["opponent_pool"]
    assert states[0]["opponent_pool"]["snapshots"]


@pytest.mark.slow
def test_pool_enabled_on_resume_starts_with_current_weights(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *SHORT, *POOL) as trainer:
        trainer.state.progress.iteration = 3  # as after a run without a pool; no snapshot is due
        trainer.step()
        assert trainer.methods[0].snapshots == [3]
        trainer.step()
        assert trainer.methods[0].snapshots == [3, 4]


@pytest.mark.slow
def test_two_ranks_play_opponents_as_one_rank(tmp_path: Path) -> None:
    keys = [*SHORT, *POOL, "num_iterations=2", "team.opponent_pool.share=0.125", "team.opponent_pool.elo=true"]
    keys += [*a_game(tmp_path), "team=shared_policy"]
    one = rows(train(tmp_path / "one", *keys))
    folder = train_on_two_ranks(tmp_path / "two", *keys)
    assert_metrics_close(one[:2], rows(folder)[:2], rel=2e-3, abs=1e-4)
    assert [row["player"] for row in json.loads((folder / "elo.json").read_text())] == ["shared@0", "shared"]
