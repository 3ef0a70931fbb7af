"""Dynamic sampling: groups of equal scores are replaced by groups of the schedule's next prompts."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from rank_scripts import finish, read_output, start_ranks
from small import (
    SMALL,
    assert_two_ranks_agree,
    experience_of,
    new_run,
    open_trainer,
    rows,
    small_config,
    train,
)

from ippo_cli.config.errors import Preempted, RewardError
from ippo_cli.reporting.stopwatch import Stopwatch
from ippo_cli.rewards.score import RawScores
from ippo_cli.runs.checkpoint_files import MANIFEST, newest_intact_checkpoint
from ippo_cli.training.methods.refill import (
    CandidateGroups,
    GroupScores,
    Refill,
    candidate_metrics,
    gather_group_scores,
)
from ippo_cli.training.process import run_training
from ippo_cli.training.reward_calls import RewardCaller
from ippo_cli.training.trainer import Trainer
from ippo_cli.types import Experience

REWARD = '''
import os, signal
calls = 0

def is_flat(row):
    return sum(map(ord, row["low"])) % 2 == 0

def reward(examples, responses):
    """Every second prompt gives all responses the same score. Asks the run to stop at a chosen call."""
    global calls
    calls += 1
    if str(calls) == os.environ.get("STOP_AT_CALL"):
        os.kill(os.getpid(), signal.SIGTERM)
    pairs = list(zip(responses["low"], examples))
    return {
        "agent": {
            "low": [0.0 if is_flat(row) else sum(map(ord, low)) % 7 / 6 for low, row in pairs],
            "high": [1.0] * len(examples),
        },
        "parts": {"length": [float(len(low)) for low, _ in pairs]},
    }

def flat(examples, responses):
    return {"team": [0.5] * len(examples)}

def failing(examples, responses):
    """Some rows have no score."""
    rewards = reward(examples, responses)
    pairs = zip(responses["low"], rewards["agent"]["low"])
    low = [None if sum(map(ord, text)) % 5 == 0 else number for text, number in pairs]
    return rewards | {"agent": rewards["agent"] | {"low": low}}
'''
GROUPS = ("algorithm=grpo", "rollout.num_generations=4", "rollout.buffer_size=16", "reward.agent_weight=1.0")
SIZE, PROMPTS = 4, 4


def overrides(root: Path, *more: str, name: str = "reward", rounds: int = 8) -> list[str]:
    root.mkdir(parents=True, exist_ok=True)
    (root / "reward.py").write_text(REWARD)
    return [
        *GROUPS,
        f"rollout.refill_rounds={rounds}",
        "reward=function",
        f"reward.function={root / 'reward.py'}:{name}",
        *more,
    ]


def positions(experience: Experience) -> list[int]:
    """The positions of the groups' prompts in the schedule."""
    groups = (experience.batch.index // SIZE).reshape(-1, SIZE)
    assert (groups == groups[:, :1]).all()
    return groups[:, 0].tolist()


def final_actors(folder: Path) -> dict[str, str]:
    """SHA-256 of the final weights."""
    checkpoint = newest_intact_checkpoint(folder / "checkpoints")
    assert checkpoint is not None
    files = json.loads((checkpoint / MANIFEST).read_text())["files"]
    found = {name: entry["sha256"] for name, entry in files.items() if name.endswith(".safetensors")}
    assert found
    return found


def has_signal(experience: Experience) -> list[bool]:
    scores = experience.scores["low"].raw.sum(dim=1).reshape(-1, SIZE)
    return (scores.amax(dim=1) > scores.amin(dim=1)).tolist()


def drawn_groups(trainer: Trainer) -> CandidateGroups:
    [refill] = trainer.methods
    assert isinstance(refill, Refill)
    assert refill.candidates is not None
    return refill.candidates


def test_groups_of_equal_scores_are_replaced_by_the_next_prompts(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *overrides(tmp_path, rounds=0)) as trainer:
        plain = experience_of(trainer)
    with open_trainer(tmp_path, *overrides(tmp_path)) as trainer:
        refilled = experience_of(trainer)
        schedule = trainer.collector.schedule
        assert positions(plain) == list(range(PROMPTS))
        assert not all(has_signal(plain))
        assert all(has_signal(refilled))
        # Every place keeps its group or takes the first of the following prompts that has a signal.
        kept = [place for place, signal in enumerate(has_signal(plain)) if signal]
        assert [positions(refilled)[place] for place in kept] == kept
        following = [position for position in positions(refilled) if position >= PROMPTS]
        assert len(set(following)) == len(following)
        assert all(sum(map(ord, schedule.example_at(position)["low"])) % 2 for position in following)
        assert [episode.example for episode in refilled.episodes] == [
            schedule.example_at(position) for position in positions(refilled) for _ in range(SIZE)
        ]
        assert [episode.index for episode in refilled.episodes] == refilled.batch.index.tolist()
        assert len(refilled.scores["low"].parts["length"]) == PROMPTS * SIZE
        for place in kept:
            for row in range(place * SIZE, (place + 1) * SIZE):
                assert refilled.episodes[row].turns[0].completion.text == plain.episodes[row].turns[0].completion.text


def test_places_keep_their_groups_when_no_round_is_left(tmp_path: Path) -> None:
    found = {}
    for rounds in (0, 2):
        with open_trainer(tmp_path, *overrides(tmp_path, name="flat", rounds=rounds)) as trainer:
            collected = trainer.collector.collect_iteration(0, trainer.state.moments, Stopwatch())
            found[rounds] = [
                [turn.completion.text for turn in episode.turns] for episode in collected.experience.episodes
            ]
            drawn = drawn_groups(trainer) if rounds else None
    assert positions(collected.experience) == list(range(PROMPTS))
    assert found[2] == found[0]
    assert collected.buffer.prompts.end == 3 * PROMPTS
    assert drawn is not None
    assert drawn.positions == list(range(3 * PROMPTS))
    assert drawn.rounds == 2


def test_next_iteration_starts_after_the_drawn_prompts(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *overrides(tmp_path)) as trainer:
        first, _ = trainer.step()
        row = trainer.state.progress.row
        assert row is not None
        drawn = int(row["refill/prompts"])
        assert drawn > PROMPTS
        assert trainer.state.progress.extra_prompts == drawn - PROMPTS
        second, _ = trainer.step()
        assert min(positions(second)) >= drawn
        assert positions(second)[0] == drawn or not has_signal(second)[0] or positions(second)[0] > drawn
        assert max(positions(first)) < drawn


def test_metrics_describe_the_drawn_groups(tmp_path: Path) -> None:
    with open_trainer(tmp_path, *overrides(tmp_path)) as trainer:
        clock = Stopwatch()
        trainer.collector.collect_iteration(0, trainer.state.moments, clock)
        drawn = drawn_groups(trainer)
        experience, _ = trainer.step()
        row = trainer.state.progress.row
        assert row is not None
        scores = drawn.scores.scores
        assert scores.shape == (len(drawn.positions), SIZE, 2)
        uniform = (scores.amax(dim=1) == scores.amin(dim=1)).all(dim=1).double().mean()
        assert row["refill/uniform_fraction"] == pytest.approx(float(uniform))
        assert row["refill/rounds"] == drawn.rounds > 0
        assert row["refill/responses_per_row"] == len(drawn.positions) / PROMPTS
        assert row["low/score/drawn"] == pytest.approx(float(scores[:, :, 0].mean()))
        assert row["low/score/drawn"] < row["low/score/mean"], "the buffer has no groups that score 0"
        kept = sum(len(turn.completion.ids) for episode in experience.episodes for turn in episode.turns)
        assert drawn.tokens > kept
        assert row["perf/tokens_per_second"] == pytest.approx(drawn.tokens / row["time/rollout"])


@pytest.mark.parametrize(("scores", "right", "wrong"), [((0.0, 1.0), 0.25, 0.25), ((0.5, 1.0), None, None)])
def test_fractions_of_all_right_and_all_wrong_groups_need_scores_of_0_and_1(
    scores: tuple[float, float], right: float | None, wrong: float | None
) -> None:
    low, high = scores
    groups = torch.tensor([[low, low], [high, high], [low, high], [high, low]], dtype=torch.float64)[:, :, None]
    drawn = CandidateGroups(
        positions=[0, 1, 2, 3], scores=GroupScores(scores=groups), rounds=0, tokens=0.0, failure=None
    )
    row = candidate_metrics(drawn, ["solo"], 4)
    for name, expected in (("right", right), ("wrong", wrong)):
        value = row[f"refill/all_{name}_fraction"]
        assert value == expected if expected is not None else math.isnan(value)


def test_a_group_has_a_signal_if_the_known_scores_of_any_agent_differ() -> None:
    nan = math.nan
    groups = [
        [[1.0, 0.0], [1.0, 0.0]],
        [[1.0, 0.0], [1.0, 0.5]],
        [[nan, nan], [1.0, 0.0]],
        [[nan, nan], [nan, nan]],
    ]
    assert GroupScores(scores=torch.tensor(groups, dtype=torch.float64)).has_signal.tolist() == [
        False,
        True,
        False,
        False,
    ]


def test_failed_rows_of_all_rounds_count_for_the_budget(tmp_path: Path) -> None:
    keys = overrides(tmp_path, name="failing")
    with open_trainer(tmp_path, *keys, "reward.failure_budget=0.9") as trainer:
        collected = trainer.collector.collect_iteration(0, trainer.state.moments, Stopwatch())
        scores = drawn_groups(trainer).scores.scores
        failed, rows_drawn = int(scores[:, :, 0].isnan().sum()), scores.shape[0] * SIZE
        assert collected.failure is not None
        assert collected.failure.startswith(f"{failed} of {rows_drawn} rows have no reward")
        in_buffer = int(collected.experience.scores["low"].failed.sum())
        assert failed > in_buffer, "this test needs failed rows that were replaced"
    with (
        open_trainer(tmp_path, *keys, f"reward.failure_budget={(in_buffer + 0.5) / rows_drawn}") as trainer,
        pytest.raises(RewardError, match="rows have no reward"),
    ):
        experience_of(trainer)


def test_rows_of_earlier_rounds_count_for_the_failure_limit(tmp_path: Path) -> None:
    counted: list[tuple[int, int]] = []

    @dataclass(frozen=True, kw_only=True)
    class Counting(RewardCaller):
        def call(self, episodes, streaming=None, earlier_rows=0):
            counted.append((len(episodes), earlier_rows))
            return super().call(episodes, streaming, earlier_rows)

    with open_trainer(tmp_path, *overrides(tmp_path)) as trainer:
        trainer.collector.rewards = Counting(**vars(trainer.collector.rewards))
        experience_of(trainer)
    drawn = [rows for rows, _ in counted]
    assert len(drawn) > 2
    assert [earlier for _, earlier in counted] == [sum(drawn[:number]) for number in range(len(drawn))]


@pytest.mark.slow
def test_stop_at_any_reward_call_and_resume_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = overrides(tmp_path, "num_iterations=3", "checkpoint.every=1", "evaluation.every=0")
    whole = train(tmp_path, *keys)
    calls = int(sum(1 + row["refill/rounds"] for row in rows(whole)[1:]))
    assert calls > 3
    stops = 0
    for call in range(3, 3 + calls):
        config, folder = new_run(tmp_path, *keys)
        with monkeypatch.context() as stopping:
            stopping.setenv("STOP_AT_CALL", str(call))
            try:
                run_training(config, folder, resumed=False)
            except Preempted:
                stops += 1
        if json.loads((folder / "run.json").read_text())["state"] != "done":
            run_training(config, folder, resumed=True)
        assert rows(folder) == rows(whole), f"stopped at call {call}"
        assert final_actors(folder) == final_actors(whole)
    assert stops > 3


@pytest.mark.slow
def test_a_killed_run_continues_at_its_position_in_the_schedule(tmp_path: Path) -> None:
    keys = overrides(tmp_path, "num_iterations=3", "checkpoint.every=1", "evaluation.every=0")
    whole = train(tmp_path / "whole", *keys)
    killed = tmp_path / "killed"
    killed.mkdir()
    command = ["ippo_cli.cli.train", *SMALL, *keys, f"output_dir={killed}", "debug_faults=[targets:sigkill:2]"]
    assert finish(start_ranks(*command, folder=killed, world_size=1), limit_s=300) == [-9], read_output(killed)
    (metrics,) = killed.glob("default/*/metrics.jsonl")
    assert [row["iteration"] for row in rows(metrics.parent)] == [0, 1]
    config, _ = small_config(killed, *keys)
    run_training(config, metrics.parent, resumed=True)
    assert rows(metrics.parent) == rows(whole)


@pytest.mark.slow
@pytest.mark.parametrize("reward", ["reward", "failing"])
def test_two_ranks_equal_one(tmp_path: Path, reward: str) -> None:
    """Three groups on two ranks: one of them has rows on both."""
    keys = overrides(tmp_path, "rollout.buffer_size=12", "num_iterations=3", "reward.failure_budget=0.9", name=reward)
    one = assert_two_ranks_agree(tmp_path, *keys)
    assert any(row["refill/rounds"] > 1 for row in one[1:])


@pytest.mark.slow
def test_episodes_with_turns_are_replaced_whole(tmp_path: Path) -> None:
    sizes = ("task.train_size=16", "task.eval_size=4")
    keys = ("task=ladder", *sizes, *GROUPS[:3], "rollout.refill_rounds=4", "actor.warm_start_steps=20")
    with open_trainer(tmp_path, *keys) as trainer:
        collected = trainer.collector.collect_iteration(0, trainer.state.moments, Stopwatch())
        experience = collected.experience
        assert drawn_groups(trainer).rounds > 0
        assert set(positions(experience)) != set(range(PROMPTS))
        (name,) = experience.scores
        assert max(len(episode.turns) for episode in experience.episodes) > 1
        assert [len(episode.turns) for episode in experience.episodes] == [
            int(row.max()) + 1 for row in experience.rollouts[name].turn
        ]
        paid = [sum(sum(step.values()) for step in episode.rewards) for episode in experience.episodes]
        assert experience.scores[name].raw.sum(dim=1).tolist() == pytest.approx(paid)


def test_groups_are_compared_with_the_rounding_of_advantages(tmp_path: Path) -> None:
    with open_trainer(tmp_path, "rollout.buffer_size=4", "rollout.num_generations=2", "algorithm=grpo") as trainer:
        episodes = experience_of(trainer).episodes
    by_turn = torch.tensor([[0.1, 0.9], [1.0, 0.0], [0.6, 0.4], [0.5, 0.4]])
    raw = RawScores(
        numbers={"low": by_turn},
        failed={"low": torch.zeros(4, dtype=torch.bool)},
        parts={},
        normalized=None,
        failure=None,
    )
    assert len(set(by_turn.double().sum(dim=1).tolist()[:2])) == 2, "in float64 the first group differs"
    assert gather_group_scores(raw, episodes, ["low"], 2).has_signal.tolist() == [False, True]
