"""Alternatives to single turns: identity, equality with episodes that are generated completely, and divergence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from fake_engine import use_fake_engines
from players import DRAWS, ROLLOUT, Players, Rounds, transcript

from ippo_cli.rollout.alternatives import ORIGINAL, AlternativeGenerator, collect_alternatives
from ippo_cli.rollout.branches import BranchEpisodes, State
from ippo_cli.rollout.collect import collect
from ippo_cli.rollout.engine_generator import EngineGenerator
from ippo_cli.rollout.generator import Generator, HfGenerator
from ippo_cli.tasks.environment import Action, EnvironmentPool, Step
from ippo_cli.types import Completion, Episode, Example


class InTurn(Rounds):
    """Agents act one after another and observe all earlier actions; the length depends on them."""

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        self.row, self.number, self.history = example["row"], 0, f"{example['row']}:"
        return self.observations()

    def step(self, actions: Mapping[str, Action]) -> Step:
        (action,) = actions.values()
        self.history += action.text + ","
        self.number += 1
        over = self.number >= 6 or (self.number > 2 and action.text.startswith("a"))
        paid = {agent: float(len(action.text)) for agent in self.agents}
        return Step(observations={} if over else self.observations(), rewards=paid, terminated=over)

    def observations(self) -> dict[str, str]:
        return {self.agents[self.number % 2]: self.history}


@pytest.fixture(scope="module", params=["hf", "engine"])
def players(request: pytest.FixtureRequest) -> Players:
    return Players("low", "high", context_mode="last_only", with_engines=request.param == "engine")


def build(players: Players) -> Any:
    sampling = dict.fromkeys(players.policies, ROLLOUT)
    if players.with_engines:
        engines = use_fake_engines(players.policies, [])
        return EngineGenerator(players.policies, ROLLOUT, sampling, engines=engines, verify_every=1)
    return HfGenerator(players.policies, ROLLOUT, sampling)


def alternatives(
    players: Players, episodes: list[Episode], states: list[State], numbers: Any, make: Any = InTurn
) -> BranchEpisodes:
    def play(batch: Any, generator: Generator) -> list[Episode]:
        return collect(EnvironmentPool(make), players.formats, batch, generator, DRAWS)

    return collect_alternatives(play, build(players), episodes, states, numbers)


def all_states(episodes: list[Episode]) -> list[State]:
    return [
        State(row, agent, turn, 0)
        for row, episode in enumerate(episodes)
        for agent in ("low", "high")
        for turn in range(len(episode.turns_of_agent(agent)))
    ]


def content(episode: Episode) -> list[Any]:
    """Everything of an episode that agents and rewards read, log-probabilities to the bit."""
    return [transcript(episode), episode.rewards, [turn.completion.logprobs.tolist() for turn in episode.turns]]


class Anew(AlternativeGenerator):
    """Reference: generates every turn, those of the episode too."""

    def _find_completion(self, request: Any) -> Completion | None:
        super()._find_completion(request)
        return None


@pytest.mark.parametrize("make", [InTurn, Rounds])
def test_turn_itself_as_alternative_gives_the_episode(players: Players, make: Any) -> None:
    episodes = players.play(make)
    states = all_states(episodes)
    found = alternatives(players, episodes, states, [ORIGINAL], make)
    assert not any(found.has_diverged)
    for state, episode in zip(states, found.episodes, strict=True):
        if players.with_engines:  # which return simultaneous turns in any order
            assert sorted(map(str, transcript(episode))) == sorted(map(str, transcript(episodes[state.episode])))
        else:
            assert content(episode) == content(episodes[state.episode])


def test_alternatives_equal_episodes_that_are_generated_completely(
    players: Players, monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes = players.play(InTurn)
    states = all_states(episodes)
    found = alternatives(players, episodes, states, [1, 2])
    monkeypatch.setattr("ippo_cli.rollout.alternatives.AlternativeGenerator", Anew)
    complete = alternatives(players, episodes, states, [1, 2])
    assert [transcript(episode) for episode in found.episodes] == [transcript(episode) for episode in complete.episodes]
    assert not any(found.has_diverged)
    assert found.num_tokens < complete.num_tokens
    changed = set()
    for (state, number), episode in zip(
        [(state, number) for state in states for number in (1, 2)], found.episodes, strict=True
    ):
        origin = episodes[state.episode]
        step = state.turn_of(episodes).step
        assert transcript(episode)[:step] == transcript(origin)[:step]
        assert transcript(episode)[step][3] == transcript(origin)[step][3]
        changed.add((state, number, transcript(episode)[step] != transcript(origin)[step]))
        if transcript(episode)[step] == transcript(origin)[step]:
            assert transcript(episode) == transcript(origin)
    assert sum(is_changed for *_, is_changed in changed) > len(states)
    lengths = {len(episode.turns) for episode in found.episodes}
    assert len(lengths) > 1


def test_agents_of_the_same_step_keep_their_actions(players: Players) -> None:
    episodes = players.play(Rounds)
    state = State(2, "low", 1, 0)
    found = alternatives(players, episodes, [state], [1, 2, 3], Rounds)
    for episode in found.episodes:
        kept = [turn.completion.ids.tolist() for turn in episode.turns_of_agent("high")]
        assert kept == [turn.completion.ids.tolist() for turn in episodes[2].turns_of_agent("high")]
        rest = [turn.completion.text for turn in episode.turns_of_agent("low")]
        original = [turn.completion.text for turn in episodes[2].turns_of_agent("low")]
        assert [rest[0], *rest[2:]] == [original[0], *original[2:]]
    assert len({episode.turns_of_agent("low")[1].completion.text for episode in found.episodes}) > 1


def test_alternatives_do_not_depend_on_others(players: Players) -> None:
    episodes = players.play(InTurn)
    states = all_states(episodes)[:6]
    together = alternatives(players, episodes, states, [1, 2])
    for place, state in enumerate(states):
        moved = [episodes[state.episode]]
        alone = alternatives(players, moved, [replace(state, episode=0)], [1, 2])
        own = together.episodes[2 * place : 2 * place + 2]
        assert [transcript(episode) for episode in alone.episodes] == [transcript(episode) for episode in own]


class Moody(InTurn):
    """Observations after the first step differ from one reset to the next."""

    resets = 0

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        type(self).resets += 1
        self.mood = type(self).resets
        return super().reset(example, seed)

    def observations(self) -> dict[str, str]:
        return {agent: f"{text}{self.mood if self.number else ''}" for agent, text in super().observations().items()}


def test_branches_that_do_not_reach_their_state_are_marked(players: Players) -> None:
    episodes = players.play(Moody, range(3))
    states = [State(0, "low", 0, 0), State(1, "high", 0, 0), State(2, "low", 1, 0)]
    found = alternatives(players, episodes, states, [1], Moody)
    assert found.has_diverged == [False, True, True]
