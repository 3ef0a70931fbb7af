"""Enumerated continuations of episodes against the probabilities of a game computed by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from players import DRAWS, ROLLOUT, TOKENIZER, Players, Rounds

from ippo_cli.rollout.branches import State
from ippo_cli.rollout.collect import collect
from ippo_cli.rollout.enumerate import WeightedResponses
from ippo_cli.rollout.enumerated_episodes import enumerate_episodes
from ippo_cli.rollout.generator import Generator, HfGenerator
from ippo_cli.tasks.environment import Action, EnvironmentPool, Step
from ippo_cli.types import Completion, Episode


class Observed(Rounds):
    """Two steps of both agents; observations have all earlier actions. An `a` in the first step ends the episode."""

    def reset(self, example: Mapping[str, Any], seed: int) -> Mapping[str, str]:
        self.history, self.number = "0:", 0
        return dict.fromkeys(self.agents, self.history)

    def step(self, actions: Mapping[str, Action]) -> Step:
        texts = [actions[agent].text for agent in self.agents]
        self.history += "".join(texts)
        self.number += 1
        over = self.number == 2 or texts[0] == "a"
        seen = {} if over else dict.fromkeys(self.agents, self.history)
        return Step(observations=seen, rewards=dict.fromkeys(self.agents, 0.0), terminated=over)


def responses(prompt: Sequence[int]) -> WeightedResponses:
    """Two letters; the probability of `a` depends on the prompt's length."""
    chance = 0.25 if len(prompt) < 3 else 0.5
    texts = {"a": chance, "b": 1 - chance}
    completions = []
    for text, part in texts.items():
        ids = torch.tensor(TOKENIZER(text).input_ids)
        logprobs = torch.full((len(ids),), math.log(part))
        completions.append(Completion(ids=ids, logprobs=logprobs, behavior_logprobs=logprobs, text=text, finished=True))
    return WeightedResponses(completions, torch.tensor(list(texts.values()), dtype=torch.float64))


@pytest.fixture(scope="module")
def players() -> Players:
    return Players("low", "high", context_mode="last_only")


def enumerate_from_state(
    players: Players, episodes: list[Episode], state: State, limit: int = 100, enumerate_turn: Any = None
) -> list[tuple[Episode, float]] | None:
    def play(batch: Any, generator: Generator) -> list[Episode]:
        return collect(EnvironmentPool(Observed), players.formats, batch, generator, DRAWS)

    generator = HfGenerator(players.policies, ROLLOUT, dict.fromkeys(players.policies, ROLLOUT))
    turn = enumerate_turn or (lambda _, prompt: responses(prompt))
    return enumerate_episodes(play, generator, turn, episodes, state, limit)


def texts(episode: Episode) -> str:
    return "".join(turn.completion.text for turn in episode.turns)


def test_all_episodes_have_the_product_of_their_probabilities(players: Players) -> None:
    episodes = players.play(Observed, [0])
    found = enumerate_from_state(players, episodes, State(0, "low", 0, 0))
    assert found is not None
    expected = {"aa": 1 / 16, "ab": 3 / 16}
    for first in ("ba", "bb"):
        chance = 0.75 * (0.25 if first == "ba" else 0.75)
        expected |= {first + second: chance / 4 for second in ("aa", "ab", "ba", "bb")}
    assert {texts(episode): chance for episode, chance in found} == pytest.approx(expected)


def test_earlier_steps_are_those_of_the_episode(players: Players) -> None:
    episodes = players.play(Observed, range(8))
    row = next(row for row, episode in enumerate(episodes) if len(episode.turns) == 4)
    found = enumerate_from_state(players, episodes, State(row, "high", 1, 0))
    assert found is not None
    before = texts(episodes[row])[: -sum(len(turn.completion.text) for turn in episodes[row].turns[2:]) or None]
    assert {texts(episode) for episode, _ in found} == {before + end for end in ("aa", "ab", "ba", "bb")}
    assert sum(chance for _, chance in found) == pytest.approx(1.0)


def test_limits(players: Players) -> None:
    episodes = players.play(Observed, [0])
    assert enumerate_from_state(players, episodes, State(0, "low", 0, 0), limit=9) is None
    assert enumerate_from_state(players, episodes, State(0, "low", 0, 0), limit=10) is not None
    assert enumerate_from_state(players, episodes, State(0, "low", 0, 0), enumerate_turn=lambda *_: None) is None
