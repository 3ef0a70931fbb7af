"""Agents at servers beside agents whose models are in the process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, use_fake_engines
from model_server import ModelServer, save_partner, serve_model
from players import DRAWS, ROLLOUT, Players

from ippo_cli.config.errors import EngineError
from ippo_cli.config.schema import ActorKind, ServerActorConfig
from ippo_cli.rollout.combined_generator import CombinedGenerator, build_with_served_agents
from ippo_cli.rollout.engine_generator import EngineGenerator
from ippo_cli.rollout.generator import HfGenerator, Request, StreamingGenerator
from ippo_cli.rollout.served_policy import ServedPolicy, load_served_policy

pytest.importorskip("httpx2", reason="needs the extra `http`")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_partner(tmp_path_factory.mktemp("partner"))


@pytest.fixture
def server(model: Path) -> Iterator[tuple[str, ModelServer]]:
    with serve_model(model) as found:
        yield found


def load_policy(name: str, url: str, model: Path, **changes: Any) -> ServedPolicy:
    values: dict[str, Any] = {"tokenizer": None, "tokenizer_revision": None, "revision": None, "served_model": None}
    values |= {"context_limit": None, "token_env": None, "start_timeout_s": 5.0, "request_timeout_s": 5.0}
    actor = ServerActorConfig(
        kind=ActorKind.server, model=str(model), chat_template=None, url=url, **(values | changes)
    )
    return load_served_policy(name, actor, str(model), None)


def combine(players: Players, partners: list[ServedPolicy], engines: list[FakeEngine] | None = None) -> Any:
    """With `engines`, the others sample from inference engines, which are appended."""
    policies: dict[str, Any] = {partner.name: partner for partner in partners} | players.policies
    sampling = dict.fromkeys(policies, ROLLOUT)

    def build(own: Any) -> Any:
        assert list(own) == list(players.policies)
        if engines is None:
            return HfGenerator(own, ROLLOUT, sampling)
        pool = use_fake_engines(own, engines)
        return EngineGenerator(own, ROLLOUT, sampling, engines=pool, verify_every=1)

    return build_with_served_agents(policies, ROLLOUT, sampling, build)


def requests(agent: str, count: int = 3) -> list[Request]:
    return [Request(agent=agent, prompt=[5 + row, 6], episode=row, index=row, turn=0) for row in range(count)]


def test_without_partners_the_generator_is_the_main_one() -> None:
    assert isinstance(combine(Players("low"), []), HfGenerator)


def test_batches_keep_their_agents_and_order(server: tuple[str, ModelServer], model: Path) -> None:
    url, _ = server
    generator = combine(Players("low", "mid"), [load_policy("high", url, model), load_policy("top", url, model)])
    assert isinstance(generator, CombinedGenerator)
    assert not isinstance(generator, StreamingGenerator)
    groups = generator.batch_groups(["low", "high", "mid", "top"])
    assert groups == [("low",), ("high", "top"), ("mid",)]


def test_each_agent_is_asked_where_its_model_is(server: tuple[str, ModelServer], model: Path) -> None:
    url, answers = server
    players = Players("low")
    generator = combine(players, [load_policy("high", url, model)])
    generator.start_collection()
    alone = HfGenerator(players.policies, ROLLOUT, {"low": ROLLOUT}).generate(["low"], requests("low"), DRAWS)
    own = generator.generate(["low"], requests("low"), DRAWS)
    assert [done.ids.tolist() for done in own] == [done.ids.tolist() for done in alone]
    before = len(answers.prompts)  # the check at the start completes one token
    partner = generator.generate(["high"], requests("high"), replace(DRAWS, greedy=True))
    assert sorted(answers.prompts[before:]) == [request.prompt for request in requests("high")]
    assert all(0 < len(done.ids) <= ROLLOUT.max_new_tokens for done in partner)
    assert generator.take_metrics() == {}
    generator.close()


def test_context_is_the_models_or_a_lower_one(server: tuple[str, ModelServer], model: Path) -> None:
    url, _ = server
    players = Players("low")
    assert combine(players, [load_policy("high", url, model)]).context_limit("high") == 256
    assert combine(players, [load_policy("high", url, model, context_limit=64)]).context_limit("high") == 64


def test_tokenizer_alone_needs_a_context_limit(server: tuple[str, ModelServer], model: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((model / name).read_bytes())
    players, name = Players("low"), {"served_model": str(model)}
    with pytest.raises(EngineError, match=r"set task\.agents\.high\.actor\.context_limit=256"):
        combine(players, [load_policy("high", server[0], tmp_path, **name)]).start_collection()
    policy = load_policy("high", server[0], tmp_path, context_limit=256, **name)
    assert policy.stop_ids == (1,)
    combine(players, [policy]).start_collection()


def test_unknown_model_names_the_key(server: tuple[str, ModelServer], model: Path) -> None:
    with pytest.raises(
        EngineError,
        match=r"agents\.high\.actor\.url=http.*does not serve big; .*set task\.agents\.high\.actor\.served_model",
    ):
        combine(Players("low"), [load_policy("high", server[0], model, served_model="big")]).start_collection()


def test_streams_do_not_wait_for_servers(server: tuple[str, ModelServer], model: Path) -> None:
    url, answers = server
    engines: list[FakeEngine] = []
    generator = combine(Players("low"), [load_policy("high", url, model)], engines)
    assert isinstance(generator, StreamingGenerator)
    generator.start_collection()
    answers.delay_s = 1.0
    draws = replace(DRAWS, greedy=True)
    agents = {generator.submit(request, draws): request.agent for request in [*requests("high"), *requests("low")]}
    assert len(agents) == 6
    began, ended, seconds = time.monotonic(), [], {}
    while len(ended) < 6:
        for key, done in generator.step():
            ended.append(key)
            seconds[agents[key]] = time.monotonic() - began
            assert len(done.ids) > 0
    assert set(ended) == set(agents)
    assert seconds["low"] < 0.5 < 1.0 < seconds["high"]
    assert (generator.weights_version("low"), generator.weights_version("high")) == (1, 0)
    generator.finish_collection()
    generator.close()
    assert engines[0].loads == [1]
