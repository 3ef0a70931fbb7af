"""Training with `task.protocol=calls`: an agent that decides itself how often it calls the other one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from small import experience_of, open_trainer, rows, train

CALLS = (
    "task.protocol=calls",
    "task.num_turns=3",
    "task.agents.low.template='{letters}?'",
    "task.agents.low.turn_template='{agents.high}!'",
    "task.agents.low.warm_start_answer='@high'",
    "task.agents.high.template='{agents.low}>'",
    "rollout.max_new_tokens=6",
    "actor.alphabet=printable",
    "actor.warm_start_steps=40",  # it learns to call, but not always
    "actor.warm_start_learning_rate=3e-3",
    "task.agents.low.rollout.temperature=0.4",
    "actor.warmup_iterations=0",
    "evaluation.every=2",
    "checkpoint.every=0",
    "num_iterations=2",
)
CALL = re.compile("@high(?![A-Za-z0-9_-])")
REWARD = """
def reward(examples, responses):
    return {"team": [sum(map(len, texts)) / 10 for texts in zip(*responses.values())]}
"""


def test_caller_and_called_agent_learn_from_the_turns_that_were_called(tmp_path: Path) -> None:
    (tmp_path / "lengths.py").write_text(REWARD)
    keys = [*CALLS, "reward=function", f"reward.function={tmp_path / 'lengths.py'}:reward"]
    keys += ["task.primary_metric=sampled/score"]
    with open_trainer(tmp_path, *keys) as trainer:
        episodes = experience_of(trainer).episodes
    called = [len(episode.turns_of_agent("high")) for episode in episodes]
    assert {0, 2} <= set(called) <= {0, 1, 2}, "sometimes, and at most between three turns"
    for episode, count in zip(episodes, called, strict=True):
        assert [turn.agent for turn in episode.turns] == ["low", *["high", "low"] * count]
        *calling, last = episode.turns_of_agent("low")
        assert all(CALL.search(turn.text) for turn in calling)
        assert CALL.search(last.text) is None or count == 2
    first, *trained = rows(train(tmp_path, *keys))
    assert (first["eval/greedy/low/turns"], first["eval/greedy/high/turns"]) == (3, 2)
    assert trained[0]["high/rollout/turns"] == sum(called) / len(called)
    for row in trained:
        assert row["low/rollout/turns"] == pytest.approx(1 + row["high/rollout/turns"])
        assert 0 < row["high/rollout/turns"] < 2
        assert row["high/score/mean"] is not None
        assert row["high/policy/loss"] is not None
        assert row["high/rollout/response_length/turn/1"] is not None
        assert "high/rollout/response_length/turn/3" not in row, "three turns of the caller have two calls"
