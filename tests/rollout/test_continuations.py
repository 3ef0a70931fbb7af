"""Continuations from states inside responses: given tokens, replays, independence of other branches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_engine import use_fake_engines
from players import DRAWS, ROLLOUT, Players, Rounds, transcript

from ippo_cli.rollout.branches import BranchEpisodes, State
from ippo_cli.rollout.collect import collect
from ippo_cli.rollout.continuations import collect_continuations
from ippo_cli.rollout.decode import decode
from ippo_cli.rollout.decode_state import DecodeRows
from ippo_cli.rollout.engine_generator import EngineGenerator
from ippo_cli.rollout.generator import HfGenerator, make_sampling
from ippo_cli.rollout.noise import GumbelNoise, row_keys
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.types import Completion, Episode

SETTINGS: list[dict[str, Any]] = [
    {},
    {"top_k": 4, "min_new_tokens": 3, "repetition_penalty": 1.5},
    {"stop_strings": ["ab", "ba", "dd", "hc", "ch"]},
]


@pytest.fixture(scope="module", params=["hf", "engine"])
def players(request: pytest.FixtureRequest) -> Players:
    return Players("low", "high", with_engines=request.param == "engine")


@pytest.fixture(scope="module")
def episodes(players: Players) -> list[Episode]:
    return players.play(Rounds)


def continuations(
    players: Players, episodes: list[Episode], states: list[State], count: int = 3, make: Any = Rounds, **keys: bool
) -> BranchEpisodes:
    sampling = dict.fromkeys(players.policies, ROLLOUT)
    generator: Any = HfGenerator(players.policies, ROLLOUT, sampling, continues=True)
    if players.with_engines:
        engines = use_fake_engines(players.policies, [])
        generator = EngineGenerator(players.policies, ROLLOUT, sampling, engines=engines, verify_every=1)
    pool = EnvironmentPool(make)
    return collect_continuations(
        lambda batch, continuing: collect(pool, players.formats, batch, continuing, DRAWS),
        generator,
        episodes,
        states,
        count,
        **keys,
    )


@pytest.mark.parametrize("settings", SETTINGS, ids=["plain", "filtered", "stop strings"])
def test_given_tokens_continue_as_whole_response(settings: dict[str, Any]) -> None:
    """With the same numbers, a response of which the first tokens are given ends as the whole response does."""
    policy = Players("low").policies["low"]
    sampling = make_sampling(replace(ROLLOUT, max_new_tokens=12, **settings))
    prompts = [policy.tokenizer(text).input_ids for text in ("1.0:", "2.1:", "a", "7.3:", "hh")]
    noise = GumbelNoise(row_keys(3, "test", torch.arange(len(prompts))), 12)

    def complete(responses: list[tuple[int, ...]] | None) -> list[Completion]:
        return decode(
            policy.policy.lm,
            policy.tokenizer,
            DecodeRows(prompts=prompts, noise=noise, responses=responses),
            sampling,
            batch_size=3,
            context_limit=400,
        )

    whole = complete(None)
    assert max(len(completion.ids) for completion in whole) > 3
    for count in (1, 2, 3):
        first = [tuple(completion.ids[: min(count, len(completion.ids) - 1)].tolist()) for completion in whole]
        for found, wanted, tokens in zip(complete(first), whole, first, strict=True):
            assert (found.ids.tolist(), found.text, found.finished) == (
                wanted.ids.tolist(),
                wanted.text,
                wanted.finished,
            )
            count_given = len(tokens)
            assert not found.logprobs[:count_given].any()
            torch.testing.assert_close(found.logprobs[count_given:], wanted.logprobs[count_given:], atol=1e-5, rtol=0)


def test_continuations_replay_earlier_steps(players: Players, episodes: list[Episode]) -> None:
    row = next(row for row, episode in enumerate(episodes) if len(episode.rewards) == 3)
    origin = episodes[row]
    turn = origin.turns_of_agent("high")[1]
    states = [State(row, "high", 1, position) for position in range(len(turn.completion.ids))]
    found = continuations(players, episodes, states)
    assert len(found.episodes) == 3 * len(states)
    assert not any(found.has_diverged)
    tokens = 0
    for state, episode in zip([state for state in states for _ in range(3)], found.episodes, strict=True):
        before = [number for number, one in enumerate(origin.turns) if one.step < turn.step]
        # Engines return simultaneous turns in any order.
        assert sorted(map(str, transcript(episode)[: len(before)])) == sorted(
            map(str, transcript(origin)[: len(before)])
        )
        continued = episode.turns_of_agent("high")[1].completion
        assert continued.ids[: state.position].tolist() == turn.completion.ids[: state.position].tolist()
        torch.testing.assert_close(continued.logprobs[: state.position], turn.completion.logprobs[: state.position])
        assert continued.logprobs[state.position :].all()
        tokens += sum(len(one.completion.ids) for one in episode.turns if one.step >= turn.step) - state.position
    assert found.num_tokens == tokens
    others = {tuple(episode.turns_of_agent("low")[1].completion.ids.tolist()) for episode in found.episodes}
    assert len(others) > 1, "agents that act in the same step act again"


def test_other_actions_of_the_step_are_replayed(players: Players, episodes: list[Episode]) -> None:
    row = next(row for row, episode in enumerate(episodes) if len(episode.rewards) == 3)
    origin = episodes[row].turns_of_agent("low")[1].completion.ids.tolist()
    found = continuations(players, episodes, [State(row, "high", 1, 0)], 6, keeps_other_actions=True)
    others = [episode.turns_of_agent("low")[1].completion.ids.tolist() for episode in found.episodes]
    own = {tuple(episode.turns_of_agent("high")[1].completion.ids.tolist()) for episode in found.episodes}
    assert others == [origin] * 6
    assert len(own) > 1
    later = {tuple(episode.turns_of_agent("low")[2].completion.ids.tolist()) for episode in found.episodes}
    assert len(later) > 1, "agents act again in later steps"


def test_continuations_differ_and_do_not_depend_on_others(players: Players, episodes: list[Episode]) -> None:
    states = [State(row, "low", 0, 0) for row in range(4)]
    together = continuations(players, episodes, states, 4)
    for place, state in enumerate(states):
        own = together.episodes[4 * place : 4 * place + 4]
        assert len({str(transcript(episode)) for episode in own}) > 1
        alone = continuations(players, episodes, [state], 4)
        assert [transcript(episode) for episode in alone.episodes] == [transcript(episode) for episode in own]


class Moody(Rounds):
    """Observations differ from one reset to the next."""

    resets = 0

    def reset(self, example: Any, seed: int) -> Any:
        type(self).resets += 1
        return super().reset(example, seed)

    def observations(self) -> dict[str, str]:
        return {agent: f"{self.row}.{self.number}.{self.resets}:" for agent in self.agents}


def test_unreached_states_are_marked(players: Players, episodes: list[Episode]) -> None:
    found = continuations(players, episodes, [State(1, "low", 0, 1), State(2, "low", 1, 0)], 2, Moody)
    assert found.has_diverged == [True] * 4


def test_no_state(players: Players, episodes: list[Episode]) -> None:
    found = continuations(players, episodes, [])
    assert (found.episodes, found.num_tokens) == ([], 0)
