"""The judge reward: prompts, parsing of answers, and the answer cache."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("httpx2", reason="needs the extra `http`")
sys.path.insert(0, str(Path(__file__).parent))

from servers import ServerAnswer, serving
from spoken import spoken_once

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config
from ippo_cli.rewards import remote
from ippo_cli.rewards.build import build_reward
from ippo_cli.rewards.contract import Reward, RewardContext, close_reward, prepare_reward, validate_reward_examples
from ippo_cli.rewards.judge import AnswerParser, JudgeReward
from ippo_cli.rewards.score import call_reward
from ippo_cli.types import Episode

TALK = spoken_once([{"topic": "sea"}] * 3, {"low": ["a", "b", "a"], "high": ["x", "x", "x"]})
BY_BOTH = "reward.template='{topic}: {agents.low} then {agents.high}'"


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "FIRST_WAIT_S", 0.01)


def says(text: str) -> ServerAnswer:
    return ServerAnswer({"choices": [{"message": {"role": "assistant", "content": text}}]})


@cache
def composed(keys: tuple[str, ...]) -> Config:
    return load_config(["task=sorting", "reward=judge", "reward.url=http://set/below", "reward.model=large", *keys])


def judged(url: str, *keys: str, folder: Path | None = None, talk: list[Episode] = TALK) -> Reward:
    config = composed(keys)
    reward = build_reward(replace(config.reward, url=f"{url}/v1"), config.task.agents)  # type: ignore[call-arg]
    prepare_reward(reward, RewardContext(device=torch.device("cpu"), folder=folder))
    try:
        return call_reward(reward, talk, list(config.task.agents), config.reward)[0]
    finally:
        close_reward(reward)


def test_equal_requests_are_sent_once() -> None:
    def answer(body: Any, _: int) -> ServerAnswer:
        return says("Score: 10" if "<response>\na\n" in body["messages"][0]["content"] else "Score: 1")

    with serving(answer) as server:
        found = judged(server.url)
    assert found.agent == {"low": [1.0, 0.0, 1.0], "high": [0.0] * 3}
    assert found.team == [0.5, 0.0, 0.5]
    assert found.parts == {"judged": [5.5, 1.0, 5.5]}
    assert len(server.bodies) == 3
    assert all((body["model"], body["temperature"], body["max_tokens"]) == ("large", 0, 32) for body in server.bodies)


def test_template_with_all_responses() -> None:
    with serving(lambda *_: says('{"score": 3}')) as server:
        keys = ("reward.pattern=null", "reward.field=score", "reward.min_score=0", "reward.max_score=4", BY_BOTH)
        assert judged(server.url, *keys).team == [0.75] * 3
    asked = [body["messages"] for body in server.bodies]
    assert sorted(messages[0]["content"] for messages in asked) == ["sea: a then x", "sea: b then x"]


def test_template_with_missing_field_raises() -> None:
    for template, result in (("{subject}", "names the field 'subject'"), ("{topic} {agents.low}", None)):
        config = composed((f"reward.template='{template}'",))
        reward = build_reward(config.reward, config.task.agents)
        with nullcontext() if result is None else pytest.raises(ConfigError, match=rf"^reward\.template=.*{result}"):
            validate_reward_examples(reward, [{"topic": "sea"}])
        close_reward(reward)


def test_invalid_answers_fail_and_are_not_cached(tmp_path: Path) -> None:
    def answer(body: Any, _: int) -> ServerAnswer:
        return says("Score: 11" if "b then" in body["messages"][0]["content"] else "Score: 10")

    with serving(answer) as server:
        assert judged(server.url, BY_BOTH, folder=tmp_path).valid == [True, False, True]
    assert len(server.bodies) == 1 + 3
    [kept] = tmp_path.iterdir()
    assert [json.loads(line)["text"] for line in kept.read_text().splitlines()] == ["Score: 10"]
    with serving(lambda *_: ServerAnswer({"choices": []})) as server:
        assert judged(server.url, BY_BOTH).valid == [False] * 3


def test_resumed_run_uses_cached_answers(tmp_path: Path) -> None:
    with serving(lambda _, number: says(f"Score: {number + 2}")) as server:
        first = judged(server.url, "reward.concurrency=1", folder=tmp_path)
        [kept] = tmp_path.iterdir()
        kept.write_bytes(kept.read_bytes() + b'{"key": "of a run that was kil')
        assert judged(server.url, "reward.concurrency=1", folder=tmp_path) == first
        assert len(server.bodies) == 3
        other = judged(server.url, "reward.model=larger", folder=tmp_path)
        assert other != first
        assert len(server.bodies) == 6
        judged(server.url, "reward.cache_answers=false", folder=tmp_path)
        assert len(server.bodies) == 9
    assert len(kept.read_text().splitlines()) == 6


def test_pattern_timeout_fails_only_its_row() -> None:
    config = composed(())
    changes: Any = {"template": "{agents.low} then", "pattern": r"Score: (\d+)|(?:a+)+b"}
    with serving(
        lambda body, _: says("a" * 60 if "b then" in body["messages"][0]["content"] else "Score: 10")
    ) as server:
        reward = JudgeReward(replace(config.reward, url=server.url, **changes), config.task.agents, 0.5)
        try:
            found = reward(TALK)
        finally:
            reward.close()
    assert found.team is not None
    assert found.team[::2] == [1.0, 1.0]
    assert "took longer than 0.5 s" in str(found.failures[1])
    assert len(server.bodies) == 2, "no retry after a timeout of the pattern"


def number_in(text: str, keys: tuple[str, ...]) -> float:
    numbers = AnswerParser(composed(keys).reward)  # type: ignore[arg-type]
    try:
        return numbers.parse(text)
    finally:
        numbers.close()


@pytest.mark.parametrize(
    ("text", "keys", "number"),
    [
        ("Score: 3. No, Score: 4", (), 4.0),
        ("Score: 2.5/10", (), 2.5),
        ('{"score": 9} or rather {"why": {"a": 1}, "score": "7"}', ("reward.pattern=null", "reward.field=score"), 7.0),
    ],
)
def test_last_number_of_answer(text: str, keys: tuple[str, ...], number: float) -> None:
    assert number_in(text, keys) == number


@pytest.mark.parametrize("text", ["", "Score: ten", '{"score": true}', '{"score": NaN}', "{" * 3000, '{"a": 1}'])
def test_answer_without_number_fails(text: str) -> None:
    for keys in ((), ("reward.pattern=null", "reward.field=score")):
        with pytest.raises(remote.RequestFailed):
            number_in(text, keys)
