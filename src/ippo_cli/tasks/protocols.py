"""Temporary."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ippo_cli.config.schema import TaskConfig
from ippo_cli.tasks.environment import Action, Environment, Step
from ippo_cli.tasks.templates import first_message
from ippo_cli.types import Example


class Parallel:
    def __init__(self, config: TaskConfig) -> None:
        self.agents = config.agents

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        return {name: first_message(name, agent, example) for name, agent in self.agents.items()}

    def step(self, actions: Mapping[str, Action]) -> Step:
        cut = frozenset(name for name, action in actions.items() if not action.finished)
        return Step(observations={}, terminated=True, unfinished=cut)

    def close(self) -> None:
        pass


def protocol_environment(config: TaskConfig) -> Callable[[], Environment]:
    return lambda: Parallel(config)
