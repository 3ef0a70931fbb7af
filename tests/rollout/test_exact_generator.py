"""Exact samples from drafts: whatever an engine samples, the tokens are those of the trained model's own decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_engine import FakeEngine, use_fake_engines
from players import DRAWS, Players, Rounds, transcript
from torch import nn

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import NonFiniteError
from ippo_cli.config.schema import SamplingMethod
from ippo_cli.models.load import backbone_of
from ippo_cli.models.packing import enable_packing
from ippo_cli.rollout import draft_verification
from ippo_cli.rollout.collect import collect
from ippo_cli.rollout.engine_generator import EngineGenerator
from ippo_cli.rollout.exact_generator import ExactGenerator, verify_if_exact
from ippo_cli.rollout.generator import HfGenerator, Request, SamplingStream
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.types import Batch, Completion

EXACT = load_config(
    [
        "rollout=engine",
        "rollout.engine=my.py:Engine",
        "rollout.on_policy=exact",
        "rollout.max_new_tokens=12",
        "rollout.decode_batch_size=4",
    ]
).rollout
GREEDY = SamplingStream(seed=3, purpose="eval", greedy=True)


def make_generator(players: Players, config: Any = EXACT, **options: Any) -> tuple[ExactGenerator, list[FakeEngine]]:
    engines: list[FakeEngine] = []
    sampling = dict.fromkeys(players.policies, config)
    pool = use_fake_engines(players.policies, engines, **options)
    drafts = EngineGenerator(players.policies, config, sampling, engines=pool, verify_every=0)
    generator = verify_if_exact(drafts, players.policies, config, sampling)
    assert isinstance(generator, ExactGenerator)
    generator.start_collection()
    return generator, engines


def requests(count: int, agent: str = "low", **options: Any) -> list[Request]:
    prompts = [[5 + row, *[6, 7, 8, 9][: row % 5]] for row in range(count)]
    return [
        Request(agent=agent, prompt=prompt, episode=row, index=row, turn=0, **options)
        for row, prompt in enumerate(prompts)
    ]


def compare(found: Sequence[Completion], expected: Sequence[Completion]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert (one.text, one.finished) == (other.text, other.finished)
        torch.testing.assert_close(one.logprobs, other.logprobs)
        torch.testing.assert_close(one.behavior_logprobs, other.behavior_logprobs)


@pytest.mark.parametrize("draws", [DRAWS, GREEDY], ids=["sampled", "greedy"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.7},
        {"top_p": 0.8},
        {"top_k": 3, "min_p": 0.01},
        {"repetition_penalty": 1.3},
        {"min_new_tokens": 4},
        {"stop_strings": ["ab", "c"]},
        {"sampling": SamplingMethod.inverse_cdf},
        {"verify_rounds": 1},
        {"context_limit": 10},
    ],
    ids=str,
)
def test_samples_are_those_of_the_model(changes: dict[str, Any], draws: SamplingStream) -> None:
    players, config = Players("low"), replace(EXACT, **changes)
    own = HfGenerator(players.policies, config, {"low": config}).generate(("low",), requests(12), draws)
    generator, (engine,) = make_generator(players, config, temperature_factor=1.8)
    with torch.no_grad():
        for parameter in engine.lm.parameters():
            parameter.mul_(0.9)  # another policy, which the drafts come from
    compare(generator.generate(("low",), requests(12), draws), own)
    metrics = generator.take_metrics()
    if draws.is_training:
        assert metrics["low/rollout/changed_drafts"] > 0
        assert 1 <= metrics["rollout/verify_rounds"] <= config.verify_rounds


def test_drafts_with_the_same_noise_are_confirmed() -> None:
    generator, _ = make_generator(Players("low"))
    generator.generate(("low",), requests(12), DRAWS)
    assert generator.take_metrics() | {"time/weights": 0.0} == {
        "time/weights": 0.0,
        "rollout/verify_rounds": 1.0,
        "low/rollout/changed_drafts": 0.0,
        "low/rollout/redrawn_tokens": 0.0,
    }


def test_approximate_samples_of_a_wrong_sampler_differ() -> None:
    players = Players("low")
    own = HfGenerator(players.policies, EXACT, {"low": EXACT}).generate(("low",), requests(12), DRAWS)
    pool = use_fake_engines(players.policies, [], temperature_factor=1.8)
    drafts = EngineGenerator(players.policies, EXACT, {"low": EXACT}, engines=pool, verify_every=0)
    drafts.start_collection()
    found = drafts.generate(("low",), requests(12), DRAWS)
    assert [one.ids.tolist() for one in found] != [one.ids.tolist() for one in own]


def test_given_tokens_and_limits_of_requests() -> None:
    players = Players("low")
    asked = [
        replace(request, response=(10, 11)[: request.index % 3], max_new_tokens=1 + request.index % 7)
        for request in requests(12)
    ]
    own = HfGenerator(players.policies, EXACT, {"low": EXACT}).generate(("low",), asked, DRAWS)
    generator, _ = make_generator(players, temperature_factor=1.8)
    compare(generator.generate(("low",), asked, DRAWS), own)


def test_completions_are_reported_once() -> None:
    players, reported = Players("low"), []
    generator, _ = make_generator(players, temperature_factor=1.8)

    def report(places: Sequence[int], completions: Sequence[Completion]) -> None:
        reported.extend(zip(places, completions, strict=True))

    found = generator.generate(("low",), requests(12), DRAWS, on_finished=report)
    assert sorted(place for place, _ in reported) == list(range(12))
    assert all(found[place] is completion for place, completion in reported)


@pytest.mark.parametrize("packed", [False, True])
def test_few_tokens_per_forward(packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    players = Players("low")
    policy = players.policies["low"].policy
    policy.packs = packed and enable_packing(backbone_of(policy.lm))
    assert policy.packs == packed
    own = HfGenerator(players.policies, EXACT, {"low": EXACT}).generate(("low",), requests(12), DRAWS)
    monkeypatch.setattr(draft_verification, "MAX_TOKENS", 60)
    monkeypatch.setattr(draft_verification, "MAX_LOGITS", 300)
    generator, _ = make_generator(players, temperature_factor=1.8)
    compare(generator.generate(("low",), requests(12), DRAWS), own)


def test_tokens_after_a_stop_token_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    players = Players("low")
    own = HfGenerator(players.policies, EXACT, {"low": EXACT}).generate(("low",), requests(12), DRAWS)
    generator, (engine,) = make_generator(players)
    submit = engine.submit
    monkeypatch.setattr(engine, "submit", lambda request: submit(replace(request, stop_ids=())))
    compare(generator.generate(("low",), requests(12), DRAWS), own)
    assert any(one.finished and len(one.ids) < 12 for one in own)


def test_evaluations_are_not_counted() -> None:
    generator, _ = make_generator(Players("low"), temperature_factor=1.8)
    generator.generate(("low",), requests(12), replace(DRAWS, purpose="evaluation"))
    metrics = generator.take_metrics()
    assert metrics.keys() == {"time/weights", "rollout/verify_rounds"}
    assert metrics["rollout/verify_rounds"] == 0


def test_episodes_of_several_turns_are_those_of_the_models() -> None:
    players = Players("low", "high")
    batch = Batch(examples=[{"row": row} for row in range(6)], index=torch.arange(6))
    pool = EnvironmentPool(Rounds, workers=1)
    own = HfGenerator(players.policies, EXACT, dict.fromkeys(players.policies, EXACT))
    expected = collect(pool, players.formats, batch, own, DRAWS)
    generator, _ = make_generator(players, temperature_factor=1.8)
    found = collect(pool, players.formats, batch, generator, DRAWS)
    assert [transcript(episode) for episode in found] == [transcript(episode) for episode in expected]


def test_logits_that_are_not_numbers_are_an_error() -> None:
    players = Players("low")
    generator, _ = make_generator(players)
    model = players.policies["low"].policy.lm
    head = model.get_output_embeddings()
    assert isinstance(head, nn.Module)
    head.register_forward_hook(lambda _, __, logits: logits * torch.nan)
    with pytest.raises(NonFiniteError, match="low: the model's logits are not numbers"):
        generator.generate(("low",), requests(2), DRAWS)
