"""Environments of `verifiers` train as programs; skipped if the package is missing."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from small import open_trainer, rows, train

from ippo_cli.tasks.programs.endpoint import Endpoint
from ippo_cli.types import Episode

pytest.importorskip("aiohttp", reason="needs the extra program")
pytest.importorskip("verifiers.v1", reason="needs pip install 'verifiers>=0.4,<0.5'")
pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "scripts" / "examples" / "verifiers_program.py"
GUESSING = """
import verifiers.v1 as vf

__all__ = ["Game", "Numbers"]


class Data(vf.TaskData):
    number: int


class Guess(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def length(self, trace):
        return float(sum(len(message.content) for message in trace.assistant_messages))

    @vf.metric
    async def turns(self, trace):
        return float(trace.num_turns)


class Numbers(vf.Taskset[Guess, vf.TasksetConfig]):
    def load(self):
        for number in range(132):
            yield Guess(Data(prompt="Guess!", system_prompt="A number.", number=number), self.config.task)


class Game(vf.Env[vf.SingleAgentEnvConfig]):
    async def run(self, task, agents):
        if task.data.number == 131:
            raise ValueError("no such number")
        async with agents.agent.interaction(task) as game:
            guess = await game.turn()
            for _ in range(2):
                guess = await game.turn("higher" if len(guess.last_reply) < 3 else "lower")
"""
DEBATE = """
import asyncio

import verifiers.v1 as vf

__all__ = ["Debate", "Questions"]


class Question(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    pass


class Questions(vf.Taskset[Question, vf.TasksetConfig]):
    def load(self):
        for number in range(132):
            yield Question(vf.TaskData(prompt=f"Is {number} even?"), self.config.task)


class Config(vf.EnvConfig):
    yes: vf.AgentConfig = vf.AgentConfig()
    no: vf.AgentConfig = vf.AgentConfig(max_turns=2)


class Debate(vf.Env[Config]):
    async def run(self, task, agents):
        async with agents.yes.interaction(task) as yes, agents.no.interaction(task) as no:
            replies = [(await yes.turn()).last_reply, (await no.turn()).last_reply]
            for _ in range(2):
                answers = await asyncio.gather(yes.turn(f"no: {replies[1]}"), no.turn(f"yes: {replies[0]}"))
                replies = [answer.last_reply for answer in answers]

    async def finalize(self, task, episode):
        (yes,), (no,) = episode.by_agent["yes"], episode.by_agent["no"]
        yes.record_reward("longer", len(yes.transcript) - len(no.transcript))
        no.record_reward("longer", len(no.transcript) - len(yes.transcript))
        no.record_metric("turns", no.num_turns)
"""


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Set the environment of the example: its source, and settings beside the taskset."""

    def set_environment(name: str, source: str, **settings: Any) -> None:
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("VERIFIERS_ENVIRONMENT", json.dumps({"taskset": {"id": name}, **settings}))

    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # verifiers has a cache there
    return set_environment


def test_agents_must_be_the_roles(environment: Any) -> None:
    environment("debate_with_roles", DEBATE)
    spec = importlib.util.spec_from_file_location("verifiers_program", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    endpoint = Endpoint(base_url="http://127.0.0.1:9/v1", api_key="key", agents=["yes", "judge"], seed=0)
    with pytest.raises(ValueError, match=r"task\.agents has yes judge; the roles of debate_with_roles are yes no"):
        asyncio.run(module.play(module.train()[0], endpoint))


def overrides_of(agents: list[str], *others: str) -> list[str]:
    return [
        "task=program",
        "~task.agents.solo",
        f"+task.agents={{{','.join(f'{agent}: {{}}' for agent in agents)}}}",
        f"task.program={EXAMPLE}:play",
        f"task.train={EXAMPLE}:train",
        f"task.eval={EXAMPLE}:held_out",
        "task.train_size=null",
        "evaluation.every=0",
        "rollout.buffer_size=16",
        "rollout.max_new_tokens=6",
        "actor.warm_start_steps=0",
        "actor.learning_rate=3e-4",
        "algorithm=ppo",
        "num_iterations=2",
        *others,
    ]


def find_spawners() -> list[psutil.Process]:
    """The running processes of this one that start programs."""
    children = [child for child in psutil.Process().children() if child.status() != psutil.STATUS_ZOMBIE]
    return [child for child in children if "spawner" in " ".join(child.cmdline())]


def play_episodes(root: Path, overrides: list[str]) -> list[Episode]:
    """The episodes of the first iteration; no process and no file of them is left."""
    folders = Path(os.environ["HOME"], ".cache", "verifiers", "runtimes", "subprocess")
    gc.collect()  # a spawner ends with its last environment
    psutil.wait_procs(find_spawners(), timeout=10)
    assert find_spawners() == []
    with open_trainer(root, *overrides) as trainer:
        others = set(folders.iterdir())  # of the trial before training, which ends an episode early
        episodes = trainer.collector.play_episodes(trainer.collector._batch(0), trainer.collector._draws(0))
        (spawner,) = find_spawners()
        psutil.wait_procs(spawner.children(recursive=True), timeout=10)
        assert spawner.children(recursive=True) == []
    assert set(folders.iterdir()) == others
    return episodes


def check_tokens(episode: Episode, agent: str, num_turns: int) -> None:
    """Every turn has sampled tokens, and continues those of the turn before."""
    turns = episode.turns_of_agent(agent)
    assert len(turns) == num_turns
    assert all(len(turn.completion.ids) for turn in turns)
    for earlier, later in pairwise(turns):
        known = earlier.prompt + earlier.completion.ids.tolist()
        assert later.prompt[: len(known)] == known


def test_environment_of_one_agent_trains(tmp_path: Path, environment: Any) -> None:
    environment("guessing_game", GUESSING)
    overrides = overrides_of(["player"])
    episodes = play_episodes(tmp_path, overrides)
    assert len(episodes) == 16
    for episode in episodes:
        if episode.example["number"] == 131:
            assert "EnvError: Game.run(): ValueError: no such number" in str(episode.failure)
            continue
        assert episode.failure is None
        check_tokens(episode, "player", 3)
        length = sum(len(turn.text) for turn in episode.turns_of_agent("player"))
        assert episode.rewards[-1] == {"player": 2.0 * length}
        assert (episode.parts["length"], episode.parts["turns"]) == (length, 3.0)
    assert sum(episode.failure is not None for episode in episodes) <= 1
    last = rows(train(tmp_path, *overrides, "reward.failure_budget=0.5"))[-1]
    assert last["player/score/part/turns"] == 3.0


def test_both_roles_of_an_environment_train(tmp_path: Path, environment: Any) -> None:
    environment("debate_of_two", DEBATE, max_concurrent_agents=None)
    overrides = overrides_of(["no", "yes"])
    for episode in play_episodes(tmp_path, overrides):
        assert episode.failure is None
        check_tokens(episode, "yes", 3)
        check_tokens(episode, "no", 2)
        assert episode.rewards[-1]["yes"] == -episode.rewards[-1]["no"]
        assert episode.parts["no_turns"] == 2.0
    last = rows(train(tmp_path, *overrides))[-1]
    assert last["yes/score/part/yes_longer"] == -last["no/score/part/no_longer"]
