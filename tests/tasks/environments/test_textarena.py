"""TextArena games: messages, rewards, invalid moves, isolated randomness, and games that do not start."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("textarena", reason="needs ippo-cli[textarena]")

import nltk
from making import act, row, textarena

from ippo_cli.config.errors import ConfigError
from ippo_cli.tasks.environments.build import make_environment_factory

NEGOTIATION = "SimpleNegotiation-v0"
HANABI = "textarena.envs.Hanabi.env:HanabiEnv"
NUMBERS = "number_game:NumberGame"


def start(config: Any, seed: int = 3) -> tuple[Any, str]:
    """A new game and the first player's observation."""
    world = make_environment_factory(config)()
    return world, world.reset(row(seed), 0)["first"]


def test_observations_are_new_messages_without_own_actions() -> None:
    world, instructions = start(textarena(NEGOTIATION))
    assert instructions.startswith("[GAME] You are Player 0 in the Negotiation Game.")
    second = act(world, first="Hello! [Offer: 1 Wheat -> 1 Ore]").observations["second"]
    assert second.startswith("[GAME] You are Player 1 in the Negotiation Game.")
    assert second.endswith(
        "\n[Player 0] Hello! [Offer: 1 Wheat -> 1 Ore]\n[GAME] Player 0 made the following offer to Player 1: "
        "Offered items: 1 Wheat -> Requested items: 1 Ore"
    )
    first = act(world, second="No. [Deny]").observations["first"]
    assert first.splitlines() == [
        "[GAME] Player 0 made the following offer to Player 1: Offered items: 1 Wheat -> Requested items: 1 Ore",
        "[Player 1] No. [Deny]",
        "[GAME] Player 1 rejected the trade offer.",
        "[GAME] Player 1 made no new trade offer.",
    ]
    assert world.roles == {"first": "Player 0", "second": "Player 1"}


def test_points_of_game_state_replace_outcome_as_rewards() -> None:
    answers = {"first": "[Offer: 1 Ore -> 2 Wheat]", "second": "[Accept]"}
    rewards = {}
    for payoff in (None, "inventory_value.{player}.change"):
        world, _ = start(textarena(NEGOTIATION, payoff=payoff, max_turns=None))
        values = [dict(own) for own in world.base.state.game_state["player_values"].values()]
        agent, steps = "first", [act(world, first=answers["first"])]
        while not steps[-1].terminated:
            agent = next(iter(steps[-1].observations))
            steps.append(act(world, **{agent: answers["second"] if agent == "second" else "[Deny]"}))
        gains = [2 * values[0]["Wheat"] - values[0]["Ore"], values[1]["Ore"] - 2 * values[1]["Wheat"]]
        rewards[payoff] = [[step.rewards[name] for name in ("first", "second")] for step in steps]
        outcome = [float(np.sign(gains[0] - gains[1])), float(np.sign(gains[1] - gains[0]))]
        assert [steps[-1].parts["outcome_first"], steps[-1].parts["outcome_second"]] == outcome
        expected = {0: gains} if payoff else {len(steps) - 2: outcome}
        assert rewards[payoff][1:] == [expected.get(place, [0.0, 0.0]) for place in range(len(steps) - 1)], payoff


def test_first_invalid_move_is_explained_and_second_one_loses() -> None:
    world, _ = start(textarena(NEGOTIATION))
    offer = "[Offer: 99 Ore -> 1 Wheat]"
    step = act(world, first=offer)
    assert list(step.observations) == ["first"]
    assert "attempted an invalid move. Reason: Player 0 tried to make a trade offer" in step.observations["first"]
    assert (step.rewards, step.terminated) == ({"first": 0.0, "second": 0.0}, False)
    step = act(world, first=offer)
    assert (step.rewards, step.terminated) == ({"first": -1.0, "second": 1.0}, True)
    assert (step.parts["invalid_first"], step.parts["invalid_second"]) == (1.0, 0.0)


def test_game_is_truncated_at_max_turns_with_unread_messages() -> None:
    world, _ = start(textarena(NUMBERS, max_turns=2))
    steps = [act(world, **{agent: "go"}) for agent in ("first", "second", "first")]
    assert [step.truncated for step in steps] == [False, False, True]
    assert set(steps[-1].observations) == {"first", "second"}
    unread = steps[-1].observations["second"].splitlines()
    assert len(unread) == 3, "what the game said about its own turn and the other's, but not its own action"
    assert unread[1] == "[Player 0] go"
    assert steps[-1].parts == {}
    world, _ = start(textarena(NUMBERS, payoff="points.{player}"))
    step = act(world, first="[stop]")
    assert (step.terminated, step.parts["outcome_first"], step.parts["outcome_second"]) == (True, 1.0, -1.0)
    assert step.rewards["first"] == sum(world.base.state.game_state["points"].values()) > 0.0
    total, _ = start(textarena(NUMBERS, payoff="points"))
    assert act(total, first="go").rewards == step.rewards | {"second": step.rewards["first"]}, "one sum for both"


@pytest.mark.parametrize(("env_id", "answer"), [(NUMBERS, "go"), (HANABI, "[Discard] 0"), (NEGOTIATION, "[Accept]")])
def test_interleaved_games_are_functions_of_their_seeds(env_id: str, answer: str) -> None:
    def run(worlds: list[Any], shuffled: random.Random) -> list[list[Any]]:
        stories: list[list[Any]] = [[world.reset(row(seed), seed)] for seed, world in enumerate(worlds)]
        places = [place for place in range(len(worlds)) for _ in range(6)]
        shuffled.shuffle(places)
        for place in places:
            (agent,) = stories[place][-1]
            stories[place].append(act(worlds[place], **{agent: answer}).observations)
        return stories

    make = make_environment_factory(textarena(env_id))
    random.seed(5), np.random.seed(5)
    state = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    stories = run([make() for _ in range(3)], random.Random(0))
    assert (random.getstate(), np.random.get_state()[1].tolist()) == state  # type: ignore[union-attr]
    random.seed(6), np.random.seed(6)
    assert run([make() for _ in range(3)], random.Random(1)) == stories
    assert stories[0] != stories[1]
    used = [make() for _ in range(3)]
    run(used, random.Random(2))
    assert run(used, random.Random(3)) == stories, "independent of earlier episodes"


def test_unregistered_game_reports_sum_of_fireworks() -> None:
    world, instructions = start(textarena(HANABI, payoff="fireworks"), seed=4)
    assert "2-player Hanabi game" in instructions
    hand = world.base.state.game_state["player_hands"][0]
    ranks = [card.rank for card in hand]
    assert act(world, first=f"[Play] {ranks.index(1)}").rewards == {"first": 1.0, "second": 1.0}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (textarena("SimpleNegotiation-v1"), "task.env_id=SimpleNegotiation-v1 is not an available version; use Simple"),
        (textarena("Negotiate-v0"), "task.env_id=Negotiate-v0 is not a known game of TextArena; use .*Negotiation-v0"),
        (textarena(NEGOTIATION, "a b c"), r"does not start with 3 of task.agents \(AssertionError: The number of"),
        (textarena(NEGOTIATION, players=2), r"task.environment_args=\{'players': 2\} does not start"),
        (textarena(NEGOTIATION, payoff="points.{player}"), r"points.0 has no 'points', but: current_offer"),
        (textarena("textarena.envs.None.env:Game"), "does not start .*ModuleNotFoundError"),
        (textarena("Wordle-v0", "solo"), "needs a word list of nltk, which is not on this machine"),
    ],
)
def test_games_that_do_not_start_are_refused(config: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nltk.data, "path", [])
    monkeypatch.setattr(nltk, "download", lambda *_, **__: pytest.fail("a game downloads a word list"))
    with pytest.raises(ConfigError, match=message) as refused:
        make_environment_factory(config)
    assert refused.value.exit_code == 2
