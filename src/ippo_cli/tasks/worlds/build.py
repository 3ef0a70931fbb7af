"""Worlds by kind: what makes them, and episodes of random play in them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from ippo_cli.config.schema import (
    GymnasiumConfig,
    OwnEnvironmentConfig,
    PettingzooConfig,
    ReasoningGymConfig,
    WorldConfig,
)
from ippo_cli.tasks.environment import Action, Environment
from ippo_cli.tasks.worlds.checks import check_world
from ippo_cli.tasks.worlds.examples import world_examples

LONGEST = 1000  # steps of an episode of random play, which may have no limit of its own


class World(Environment, Protocol):
    """An environment that may know what can be answered."""

    def actions(self) -> Mapping[str, Sequence[str]]:
        """Legal answers by agent that is to act; nothing for an agent whose answers are not known."""
        ...


def make_environment(config: WorldConfig) -> Callable[[], World]:
    """What makes worlds of this configuration, each for one episode at a time and any number of them in a row.

    Raises `ConfigError` where that will not work. Every call gives a world of its own; several may be stepped at the
    same time, each in one thread.
    """
    check_world(config)
    # Each kind's package is imported only where it is used.
    if isinstance(config, GymnasiumConfig):
        from ippo_cli.tasks.worlds.gymnasium_world import gymnasium_worlds

        return gymnasium_worlds(config)
    if isinstance(config, PettingzooConfig):
        from ippo_cli.tasks.worlds.pettingzoo_world import pettingzoo_worlds

        return pettingzoo_worlds(config)
    if isinstance(config, ReasoningGymConfig):
        from ippo_cli.tasks.worlds.reasoning_gym_world import reasoning_gym_worlds

        return reasoning_gym_worlds(config)
    assert isinstance(config, OwnEnvironmentConfig)
    from ippo_cli.tasks.worlds.own_environment import own_environments

    return own_environments(config)


def newer_environment(config: WorldConfig) -> str | None:
    """The newest version of the environment, where an older one is configured that the package still has."""
    if not isinstance(config, GymnasiumConfig) or config.env_id is None:
        return None
    from ippo_cli.tasks.worlds.gymnasium_world import newer_environment as newer

    return newer(config.env_id)


def random_play(config: WorldConfig, seed: int, episodes: int) -> list[tuple[str, str]]:
    """What was told and what was answered in episodes of uniformly random legal play on training examples.

    It shows the form of answers, and favours none of them. Empty where a world does not know what may be answered.
    """
    examples, _ = world_examples(config, seed)
    luck = random.Random(f"random play {seed}")
    pairs: list[tuple[str, str]] = []
    world = make_environment(config)()
    try:
        for number in range(episodes):
            observations = world.reset(examples[number % len(examples)], luck.getrandbits(31))
            for _ in range(LONGEST):
                offered = world.actions()
                if any(not offered.get(agent) for agent in observations):
                    return pairs
                answers = {agent: luck.choice(offered[agent]) for agent in observations}
                pairs += [(observations[agent], answer) for agent, answer in answers.items()]
                step = world.step({agent: Action(text=answer) for agent, answer in answers.items()})
                if step.terminated or step.truncated:
                    break
                observations = step.observations
    finally:
        world.close()
    return pairs
