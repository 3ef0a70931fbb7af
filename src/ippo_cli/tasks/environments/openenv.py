"""`task=openenv`: environments of an OpenEnv server, with one session for each episode in progress."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from numbers import Real
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import OpenEnvConfig
from ippo_cli.tasks.environment import Action, Step
from ippo_cli.tasks.environments.openenv_fields import (
    Fields,
    ReadObservation,
    WriteAction,
    make_action_writer,
    make_observation_reader,
)
from ippo_cli.tasks.environments.openenv_session import InvalidAction, OpenEnvServer, OpenEnvSession, Reply, ServerError
from ippo_cli.types import Example
from ippo_cli.user_code.part_names import part_name


class OpenEnvEnvironment:
    """One agent in an environment on a server.

    The reward of a step is that of the observation, and `done` terminates the episode. The last numbers in the
    observation's metadata are logged. A response without a valid action takes a turn and repeats the observation.
    """

    def __init__(
        self,
        session: OpenEnvSession,
        config: OpenEnvConfig,
        write_action: WriteAction,
        read_observation: ReadObservation,
        choices: Sequence[str],
    ) -> None:
        self.session, self.config = session, config
        self.write_action, self.read_observation = write_action, read_observation
        self.choices = choices
        self.agent = next(iter(config.agents))

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        """Begin an episode with the example's seed; environments that take no seed ignore it."""
        self.reply = self.session.reset({"seed": example["seed"]} | self.config.reset_args)
        if self.reply.done:
            raise ServerError(f"{self.config.url}: the episode is over after reset")
        self.turns = self.invalid = 0
        return self._observations()

    def step(self, actions: Mapping[str, Action]) -> Step:
        reply = self._apply(actions[self.agent].text)
        self.turns += 1
        if reply is None:
            self.invalid += 1
            reward = self.config.invalid_reward
        else:
            self.reply, reward = reply, reply.reward
        numbers = {part_name(key): number for key, number in _finite_numbers(self.reply.metadata)}
        return Step(
            observations=self._observations(),
            rewards={self.agent: reward},
            terminated=self.reply.done,
            truncated=not self.reply.done and self.turns == self.config.max_turns,
            parts=numbers | {"invalid": float(self.invalid)},
        )

    def actions(self) -> Mapping[str, Sequence[str]]:
        """Legal responses, if the server's schema lists them."""
        return {self.agent: self.choices} if self.choices else {}

    def close(self) -> None:
        self.session.close(wait=True)

    def _apply(self, text: str) -> Reply | None:
        """The server's reply to a response; None if the response has no valid action."""
        action = self.write_action(text, self.reply.observation)
        try:
            return None if action is None else self.session.step(action)
        except InvalidAction:
            return None

    def _observations(self) -> Mapping[str, str]:
        return {self.agent: self.read_observation(self.reply.observation)}


def make_openenv_factory(config: OpenEnvConfig) -> Callable[[], OpenEnvEnvironment]:
    """Return a factory of environments; `ConfigError` if the server does not answer or has other fields."""
    assert config.url is not None
    server = OpenEnvServer(config.url, token=_read_token(config.token_env), timeout_s=config.timeout_s)
    schema = server.fetch_schema() or {}
    write_action, choices = make_action_writer(config, Fields(schema.get("action")))
    read_observation = make_observation_reader(config, Fields(schema.get("observation")))
    return lambda: OpenEnvEnvironment(OpenEnvSession(server), config, write_action, read_observation, choices)


def _finite_numbers(values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers among JSON values, without NaN, infinities and integers that no float holds."""
    for key, value in values.items():
        with suppress(OverflowError):
            if isinstance(value, Real) and math.isfinite(value):
                yield key, float(value)


def _read_token(variable: str | None) -> str | None:
    if variable is None:
        return None
    token = os.environ.get(variable, "").strip()
    if not token or not (token.isascii() and token.isprintable()):
        raise ConfigError(
            f"task.token_env={variable}", "is no variable with a token in ASCII", f"export {variable}=... first"
        )
    return token
