"""Multi-turn episodes in real runs: isolation of agents, streaming rewards, exact resume."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from small import experience_of, final_weights, new_run, open_trainer, rows, train

from ippo_cli.config.errors import Preempted
from ippo_cli.rollout.generator import HfGenerator
from ippo_cli.runs.signals import PreemptionHandler
from ippo_cli.training.process import run_training

pytestmark = pytest.mark.slow

SHORT = [
    "reward=environment",
    "task=environment",
    "rollout.max_new_tokens=4",
    "actor.alphabet=printable",
    "evaluation.every=0",
    "evaluation.greedy=false",
    "task.eval_size=4",
    "rollout.buffer_size=8",
    "~task.agents.player",
    '+task.agents={low:{template:"{observation}"},high:{template:"{observation}"}}',
]
TALK = '''
class Talk:
    """Two agents act at once for one to three rounds. One of the two is paid by PAID."""

    def reset(self, seed):
        self.seed, self.number = seed, 0
        return self.observations(), {}

    def step(self, action):
        self.number += 1
        over = self.number > self.seed % 3
        paid = {"low": action["low"].count("a") + len(action["low"]) / 7, "high": PAID}
        return ({} if over else self.observations()), paid, over, False, {}

    def observations(self):
        return {name: f"{self.seed % 10}{self.number}{name}" for name in ("low", "high")}

    def close(self):
        pass


def make():
    return Talk()
'''


def talk(root: Path, name: str, paid: str = 'float(len(action["high"]))') -> list[str]:
    (root / f"{name}.py").write_text(TALK.replace("PAID", paid))
    return [
        *SHORT,
        f"task.environment={root / f'{name}.py'}:make",
        "num_iterations=2",
    ]


def test_update_is_independent_of_other_agents_turn_rewards(tmp_path: Path) -> None:
    first = final_weights(train(tmp_path, *talk(tmp_path, "one")))
    second = final_weights(train(tmp_path, *talk(tmp_path, "two", '-3.0 * action["high"].count("b") + self.number')))
    assert all(torch.equal(value, second[name]) for name, value in first.items() if name.startswith("low/"))
    assert any(not torch.equal(first[name], second[name]) for name in first if name.startswith("high/actor/"))


def scored(root: Path, *overrides: str) -> Any:
    with open_trainer(root, *overrides) as trainer:
        return experience_of(trainer)


JUDGE = """
def judge(examples, responses, episodes):
    return {
        "team_by_step": [[len(turn.completion.text) / 3 for turn in one.turns] for one in episodes],
        "agent": {"first": [float(one.index) for one in episodes], "second": [1.0 for one in episodes]},
    }
"""


def test_streaming_reward_equals_batch_reward(tmp_path: Path) -> None:
    (tmp_path / "judge.py").write_text(JUDGE)
    keys = ["task=relay", "reward=function", f"reward.function={tmp_path / 'judge.py'}:judge"]
    keys += ["reward.agent_weight=0.5", "evaluation.every=0"]
    whole = scored(tmp_path, *keys)
    streamed = scored(tmp_path, *keys, "reward.reward_batch_rows=3")
    for name in ("first", "second"):
        assert whole.scores[name].score.std() > 0.01
        assert torch.equal(streamed.scores[name].score, whole.scores[name].score)
        assert torch.equal(streamed.scores[name].valid, whole.scores[name].valid)
        assert torch.equal(streamed.rollouts[name].response_ids, whole.rollouts[name].response_ids)


class Polls:
    """The turn of every poll for preemption, None between turns.

    Requests preemption at poll number `stop_at`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns: list[int | None] = []
        self.stop_at: int | None = None
        self.turn: int | None = None
        poll, generate = PreemptionHandler.raise_if_requested, HfGenerator.generate

        def counted(handler: PreemptionHandler) -> None:
            self.turns.append(self.turn)
            if len(self.turns) == self.stop_at:
                os.kill(os.getpid(), signal.SIGTERM)
            poll(handler)

        def noted(generator: HfGenerator, agent: str, requests: Any, *rest: Any, **options: Any) -> Any:
            self.turn = max((request.turn for request in requests), default=None)
            try:
                return generate(generator, agent, requests, *rest, **options)
            finally:
                self.turn = None

        monkeypatch.setattr(PreemptionHandler, "raise_if_requested", counted)
        monkeypatch.setattr(HfGenerator, "generate", noted)

    def forget(self, stop_at: int | None) -> None:
        self.turns, self.stop_at = [], stop_at


@pytest.mark.core
def test_preemption_within_an_episode_resumes_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # With one worker, the polls are deterministic on a slow machine, too.
    polls, keys = Polls(monkeypatch), [*talk(tmp_path, "talk"), "task.num_workers=1"]
    whole = train(tmp_path, *keys)
    expected_rows, expected_weights = rows(whole), final_weights(whole)
    turns = polls.turns
    within = [place for place, turn in enumerate(turns, 1) if turn == 1]
    between = [place for place in range(2, len(turns)) if turns[place - 1] is None and 1 in turns[place : place + 40]]
    for stop_at in (within[len(within) // 2], between[-1]):
        config, folder = new_run(tmp_path, *keys)
        polls.forget(stop_at)
        with pytest.raises(Preempted):
            run_training(config, folder, resumed=False)
        assert len(polls.turns) == stop_at, "it left where it was asked to"
        polls.forget(None)
        run_training(config, folder, resumed=True)
        assert rows(folder) == expected_rows
        weights = final_weights(folder)
        assert weights.keys() == expected_weights.keys()
        assert all(torch.equal(weights[name], value) for name, value in expected_weights.items())
