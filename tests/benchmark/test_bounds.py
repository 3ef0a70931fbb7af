"""Bounds of tasks, against enumeration of the environments themselves."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pkgutil import resolve_name
from statistics import fmean
from typing import Any

import pytest

from ippo_cli.benchmark import environments
from ippo_cli.benchmark.bounds import Bounds
from ippo_cli.benchmark.tasks import BENCHMARK_TASKS
from ippo_cli.benchmark.turn_games import AGENTS

ONE_TURN = ("copy_1", "copy_1_all")


def read_arguments(overrides: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Return the function and the arguments of the environment that overrides name."""
    texts = [text.partition("=") for text in overrides]
    arguments = {
        key.rpartition(".")[2]: value if value.isalpha() and value not in ("true", "false") else json.loads(value)
        for key, _, value in texts
        if "_args." in key
    }
    (name,) = (value for key, _, value in texts if key == "task.environment")
    return name, arguments


def make_environment(overrides: Sequence[str]) -> Any:
    name, arguments = read_arguments(overrides)
    return resolve_name(name)(**arguments)


def list_payoffs(environment: Any) -> Iterator[tuple[str, Mapping[tuple[str, ...], float]]]:
    """Yield the mean reward of every pair of actions in one turn, by observation."""
    seen = set()
    for seed in range(200):
        observations, _ = environment.reset(seed)
        text = "".join(observations.values())
        if text in seen:
            continue
        seen.add(text)
        legal = environment.actions()
        payoffs = {}
        for pair in product(*(legal[name] for name in AGENTS)):
            environment.reset(seed)
            _, rewards, *_ = environment.step(dict(zip(AGENTS, pair, strict=True)))
            payoffs[pair] = fmean(rewards.values())
        yield text, payoffs


@pytest.mark.parametrize("name", ONE_TURN)
def test_bounds_of_one_turn_match_all_pairs_of_actions(name: str) -> None:
    """Both agents observe all that there is, so that a best response may depend on the observation."""
    games = [payoffs for _, payoffs in list_payoffs(make_environment(BENCHMARK_TASKS[name].overrides))]
    assert len(games) in (3, 9)  # words of one or two letters

    def best_alone(payoffs: Mapping[tuple[str, ...], float], seat: int) -> float:
        actions = {pair[seat] for pair in payoffs}
        return max(fmean(payoffs[pair] for pair in payoffs if pair[seat] == action) for action in actions)

    found = BENCHMARK_TASKS[name].bounds()
    assert found.random == pytest.approx(fmean(fmean(payoffs.values()) for payoffs in games))
    assert found.best == pytest.approx(fmean(max(payoffs.values()) for payoffs in games))
    assert found.single == pytest.approx(max(fmean(best_alone(payoffs, seat) for payoffs in games) for seat in (0, 1)))


@pytest.mark.parametrize(
    "name",
    [name for name, task in BENCHMARK_TASKS.items() if "benchmark_pair" in task.overrides[0] and task.game is None],
)
def test_random_play_has_its_bound(name: str) -> None:
    task = BENCHMARK_TASKS[name]
    environment, rng, scores = make_environment(task.overrides), random.Random(1), []
    for seed in range(400):
        observations, _ = environment.reset(seed)
        total, over, parts = 0.0, False, {}
        while not over:
            legal = environment.actions()
            actions = {agent: rng.choice(legal[agent]) for agent in observations}
            observations, rewards, over, _, parts = environment.step(actions)
            total += fmean(rewards.values())
        scores.append(parts["learnt"] if task.metric == "sampled/learnt" else total)
    error = (sum((score - fmean(scores)) ** 2 for score in scores) / len(scores) ** 2) ** 0.5
    assert abs(fmean(scores) - (task.bounds().random or 0.0)) < 4 * error


def test_one_walker_that_learns() -> None:
    """With one turn left, the other agent is in each of three cells with equal odds: one of them can be met."""
    assert BENCHMARK_TASKS["meet_end"].bounds().single == pytest.approx(1 / 3)
    game = environments.meet(turns=1)

    def meets(distance: int, own: str) -> float:
        found = []
        for other in "lsr":
            game.reset(0)
            game.cells = [0, distance]
            found.append(game.step({"first": own, "second": other})[1]["first"])
        return fmean(found)

    best: Callable[[int], float] = lambda distance: max(meets(distance, own) for own in "lsr")  # noqa: E731
    assert [best(distance) for distance in range(5)] == pytest.approx([1 / 3] * 5)


def test_sources_and_scale_of_bounds() -> None:
    bounds = Bounds(0.25, 0.75, sources={"best": "limit"})
    assert [bounds.source(name) for name in ("random", "single", "best")] == ["exact", "unknown", "limit"]
    assert bounds.normalise(0.5) == 0.5
    assert Bounds(None, 1.0).normalise(0.5) is None


def test_single_agent_has_the_score_of_both() -> None:
    """One agent that writes the actions of two gets the mean of their rewards, in every task that has one."""
    for name, task in BENCHMARK_TASKS.items():
        if not task.single:
            continue
        team, alone = make_environment(task.overrides), make_environment(task.single)
        rng, totals = random.Random(2), [0.0, 0.0]
        observations, _ = team.reset(7)
        assert alone.reset(7)[0] == {"solo": "".join(dict.fromkeys(observations.values()))}
        over = False
        while not over:
            actions = {agent: rng.choice(legal) for agent, legal in team.actions().items()}
            assert "".join(actions.values()) in alone.actions()["solo"]
            _, rewards, over, *_ = team.step(actions)
            _, paid, alone_over, *_ = alone.step({"solo": "".join(actions.values())})
            totals = [totals[0] + fmean(rewards.values()), totals[1] + paid["solo"]]
            assert alone_over == over
        assert totals[0] == pytest.approx(totals[1]), name
