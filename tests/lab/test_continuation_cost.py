"""The planned cost of Monte-Carlo values, counted by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.config.schema import Config
from ippo_cli.lab.continuation_plan import ContinuationCost, continuation_costs, describe_continuations
from ippo_cli.lab.value_states import Keys, ValueStates
from ippo_cli.models.shape import ModelShape
from ippo_cli.planning.agent_shapes import AgentShapes
from ippo_cli.planning.episode_length import EpisodeLength

MODEL = ModelShape(sizes=(600, 400), layers=2, hidden=8, intermediate_size=8, kv_width=5, vocabulary=10)
ONE_TURN = EpisodeLength(turns=1, sequence_tokens=20, row_tokens=20)
AGENT = AgentShapes(actor=MODEL, critic=None, length=ONE_TURN, weights_source="")
KEYS = ("algorithm=vine_ppo", "rollout.buffer_size=32", "rollout.max_new_tokens=8", "rollout.num_generations=8")
TWO = {"low": AGENT, "high": AGENT}


def compose(*overrides: str) -> Config:
    return load_config([*KEYS, "algorithm.advantage_args.continuations=3", *overrides])


def costs_of(config: Config, shapes: dict[str, AgentShapes]) -> dict[str, ContinuationCost | None]:
    return continuation_costs(config, keys_of(config), shapes)


def keys_of(config: Config) -> Keys:
    own = config.algorithm.advantage_args
    return Keys(**own | {"states": ValueStates(own["states"])})


def cost_of(config: Config, agent: AgentShapes) -> ContinuationCost | None:
    return costs_of(config, {"solo": agent})["solo"]


def test_states_episodes_and_tokens_of_one_agent() -> None:
    found = cost_of(compose("task=sorting_solo"), AGENT)
    # States before tokens 0, 2, 4 and 6; the first one of 4 prompts, the others of 32 responses.
    tokens = 3 * (4 * 8 + 32 * (6 + 4 + 2))
    assert found == ContinuationCost(states=4, continuations=3, episodes=3 * (4 + 32 * 3), tokens=tokens)


def test_other_agents_repeat_their_turn_of_the_same_step() -> None:
    found = costs_of(compose("algorithm.advantage_args.max_states=2"), TWO)["high"]
    assert found is not None
    assert found.tokens == 3 * (4 * 16 + 32 * (4 + 8))
    several = replace(AGENT, length=EpisodeLength(turns=4, sequence_tokens=80, row_tokens=80))
    found = costs_of(compose("algorithm.advantage_args.max_states=2"), {"low": several, "high": several})["high"]
    assert found is not None
    assert found.tokens == 3 * (4 * 64 + 32 * (16 + 24))


@pytest.mark.parametrize(
    ("overrides", "turns", "states"),
    [
        (("algorithm.advantage_args.states=turns", "algorithm.advantage_args.every=null"), 1, 1),
        (("algorithm.advantage_args.states=turns", "algorithm.advantage_args.every=null"), 3, 3),
        (("algorithm.advantage_args.every=3",), 2, 6),
        (("algorithm.advantage_args.every=3", "algorithm.advantage_args.max_states=5"), 2, 5),
        (("algorithm.advantage_args.every=3",), None, None),
        (("algorithm.advantage_args.every=3", "algorithm.advantage_args.max_states=5"), None, 5),
        (("algorithm.advantage_args.states=lines", "algorithm.advantage_args.every=null"), 1, None),
    ],
)
def test_limits_of_states(overrides: tuple[str, ...], turns: int | None, states: int | None) -> None:
    agent = replace(AGENT, length=EpisodeLength(turns=turns, sequence_tokens=100, row_tokens=100))
    found = cost_of(compose("task=sorting_solo", *overrides), agent)
    assert (None if found is None else found.states) == states


def test_descriptions() -> None:
    config = compose("task=sorting_solo")
    (known,) = describe_continuations(config, keys_of(config), {"solo": AGENT})
    assert known == (
        "solo: at most 4 states of a response x 3 continuations, 300 episodes per iteration; at most 1248 tokens, "
        "4.9 times those of the responses"
    )
    lines = compose("task=sorting_solo", "algorithm.advantage_args.states=lines", "algorithm.advantage_args.every=null")
    (unknown,) = describe_continuations(lines, keys_of(lines), {"solo": AGENT})
    assert unknown == "solo: 3 continuations from each state; the number of states depends on the responses"
