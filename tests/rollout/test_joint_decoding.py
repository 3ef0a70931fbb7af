"""Agents on one base generate the same in one batch as one after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from players import DRAWS, ROLLOUT, TOKENIZER, Players, Rounds, model_of, transcript

from ippo_cli.agents.agent import FrozenAgent
from ippo_cli.config.schema import AdapterInit, AdapterMismatch, LoraConfig
from ippo_cli.models.adapters import AdapterPolicy
from ippo_cli.models.lora import FrozenBase
from ippo_cli.rollout.generator import HfGenerator, Request
from ippo_cli.tasks.environment import Action, Step

AGENTS = ("low", "high", "mid")
LORA = LoraConfig(
    rank=3,
    alpha=6.0,
    use_rslora=False,
    use_dora=False,
    target_modules="all-linear",
    rank_pattern={},
    alpha_pattern={},
    adapter_mismatch=AdapterMismatch.error,
    init=AdapterInit.default,
)


class Alone(Mapping[str, FrozenAgent]):
    """The same policies without `shared_base`."""

    def __init__(self, policies: Mapping[str, FrozenAgent]) -> None:
        self.policies = policies

    def __getitem__(self, name: str) -> FrozenAgent:
        policy = self.policies[name].policy
        policy.shared_base = None
        return self.policies[name]

    def __iter__(self):
        return iter(self.policies)

    def __len__(self) -> int:
        return len(self.policies)


class ThreeRounds(Rounds):
    """In odd rounds one of the agents does not act."""

    agents = AGENTS

    def observations(self) -> dict[str, str]:
        observations = super().observations()
        if self.number % 2:
            observations.pop(AGENTS[self.row % 3])
        return observations

    def step(self, actions: Mapping[str, Action]) -> Step:
        return super().step(actions)


@pytest.fixture
def players() -> Players:
    """Three agents with different outputs, by adapters of different shapes on one base."""
    base, players = FrozenBase(model_of(TOKENIZER, 0), "base"), Players(*AGENTS)
    configs = [LORA, replace(LORA, rank=2), replace(LORA, target_modules=["q_proj", "down_proj"])]
    generator = torch.Generator().manual_seed(0)
    for (name, agent), config in zip(list(players.policies.items()), configs, strict=True):
        adapter = base.add_adapter(config, "actor", 0)
        with torch.no_grad():
            for parameter in adapter.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
        players.policies[name] = replace(agent, held_policy=AdapterPolicy(base, adapter).eval())
    return players


@pytest.mark.parametrize("continues", [False, True])
@pytest.mark.parametrize("greedy", [False, True])
def test_joint_decoding_matches_separate(players: Players, greedy: bool, continues: bool) -> None:
    draws = replace(DRAWS, greedy=greedy)
    assert together(players) == [AGENTS]
    joint = [transcript(one) for one in players.play(ThreeRounds, range(11), continues=continues, draws=draws)]
    players.policies = Alone(players.policies)  # type: ignore[assignment]
    assert together(players) == [(name,) for name in AGENTS]
    assert [transcript(one) for one in players.play(ThreeRounds, range(11), continues=continues, draws=draws)] == joint
    texts = {name: {str(turn[4]) for episode in joint for turn in episode if turn[0] == name} for name in AGENTS}
    assert len(set(map(frozenset, texts.values()))) == 3  # the agents' outputs differ


def together(players: Players) -> list[tuple[str, ...]]:
    return HfGenerator(players.policies, ROLLOUT, dict.fromkeys(AGENTS, ROLLOUT)).batch_groups(AGENTS)


def test_different_sampling_settings_decoded_separately(players: Players) -> None:
    sampling = dict.fromkeys(AGENTS, ROLLOUT) | {"high": replace(ROLLOUT, top_k=3)}
    assert HfGenerator(players.policies, ROLLOUT, sampling).batch_groups(AGENTS) == [("low", "mid"), ("high",)]


def test_joint_batch_size(players: Players) -> None:
    seen: list[int] = []
    base = players.policies["low"].policy.base  # type: ignore[attr-defined]
    base.lm.model.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[0]))
    players.play(ThreeRounds, range(8), decode_batch_size=16)
    assert max(seen) == 16


def test_maps_with_inactive_adapter_use_base(players: Players) -> None:
    narrow = replace(LORA, target_modules=["q_proj"])
    base = FrozenBase(model_of(TOKENIZER, 0), "base")
    adapters = [
        base.add_adapter(config, "actor", 0) for config in (narrow, narrow, replace(LORA, target_modules="all-linear"))
    ]
    generator = torch.Generator().manual_seed(0)
    for adapter in adapters:  # the last one belongs to a critic, or to a separately decoded agent
        with torch.no_grad():
            for parameter in adapter.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    speaking = AGENTS[:2]
    policies = {
        name: replace(players.policies[name], held_policy=AdapterPolicy(base, adapter).eval())
        for name, adapter in zip(speaking, adapters, strict=False)
    }
    requests = [Request(agent=name, prompt=[5, 6, 7], episode=0, index=0, turn=0) for name in speaking]

    def written(who: Sequence[str]) -> list[list[int]]:
        generator = HfGenerator(policies, ROLLOUT, dict.fromkeys(speaking, ROLLOUT))
        asked = [request for request in requests if request.agent in who]
        return [one.ids.tolist() for one in generator.generate(who, asked, replace(DRAWS, seed=9))]

    assert written(speaking) == [*written(speaking[:1]), *written(speaking[1:])]


def test_equal_prompts_prefilled_once_per_agent(players: Players) -> None:
    requests = [
        Request(agent=name, prompt=[5, 6, 7], episode=number, index=number, turn=0)
        for name, count in zip(AGENTS, (3, 1, 2), strict=True)
        for number in range(count)
    ]

    def written(who: Sequence[str]) -> list[list[int]]:
        settings = replace(ROLLOUT, decode_batch_size=16)
        generator = HfGenerator(players.policies, settings, dict.fromkeys(AGENTS, settings))
        asked = [request for request in requests if request.agent in who]
        return [one.ids.tolist() for one in generator.generate(who, asked, replace(DRAWS, seed=9))]

    apart = [ids for name in AGENTS for ids in written([name])]
    seen: list[int] = []
    base = players.policies["low"].policy.base  # type: ignore[attr-defined]
    base.lm.model.layers[0].register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[0]))
    assert written(AGENTS) == apart
    assert seen[:2] == [3, 6]
