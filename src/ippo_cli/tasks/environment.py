"""The environment interface: observations to agents, actions from agents, rewards.

Conversations and stepped environments share it. A conversation passes responses between agents, and a reward function
scores it at its end; a stepped environment (Gymnasium, a game) produces observations and rewards at every step.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ippo_cli.config.errors import raise_interruption
from ippo_cli.tasks.tools.formats import ParsedResponse
from ippo_cli.types import Example, Turn

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Action:
    """One response of an agent."""

    text: str
    finished: bool = True  # False: truncated at a token limit
    response: ParsedResponse | None = None  # of an agent with tools
    turn: Turn | None = None  # prompt and sampled tokens; None for answers that no model generated
    tokenizer: PreTrainedTokenizerBase | None = None  # of the agent
    refusal: str = ""  # why there is no response to a request of a program
    refusal_code: str = "invalid_request_error"  # OpenAI's code of the error

    @property
    def answer(self) -> str:
        """The text for other agents: without tool calls."""
        return self.text if self.response is None or not self.response.calls else self.response.content


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The result of the actions of one step.

    During an episode, the keys of `observations` are the agents that act next. At its end, `observations` holds the
    final observations, without an action: a truncated episode is bootstrapped from their values.
    """

    observations: Mapping[str, str]  # agent -> text
    rewards: Mapping[str, float] = field(default_factory=dict)  # agent -> reward of this step; missing counts as 0
    terminated: bool = False  # the episode ended
    truncated: bool = False  # the environment cut it at a limit
    unfinished: frozenset[str] = frozenset()  # agents that were truncated although the episode terminated
    ended: frozenset[str] = frozenset()  # agents that terminated, even if other agents continue or are truncated
    parts: Mapping[str, float] = field(
        default_factory=dict
    )  # logged numbers, such as success; the last step's value counts

    def with_observations(self, observations: Mapping[str, str]) -> Step:
        """Return this step with other observations (`dataclasses.replace` is slower than small environments)."""
        return Step(
            observations=observations,
            rewards=self.rewards,
            terminated=self.terminated,
            truncated=self.truncated,
            unfinished=self.unfinished,
            ended=self.ended,
            parts=self.parts,
        )


class InvalidReturn(TypeError):
    """User code returned a value of the wrong type; no action of an agent can be the cause."""


class Environment(Protocol):
    """One episode at a time, with one or several agents. An exception fails only the current episode.

    An attribute `roles` is optional: each agent's role in the episode as text, such as its seat. Returns of different
    roles have different baselines (`algorithm=rae`).
    """

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        """Begin an episode, deterministic in (example, seed); the keys returned are the agents that act first."""
        ...

    def step(self, actions: Mapping[str, Action]) -> Step:
        """Apply the actions of all agents that received an observation."""
        ...

    def close(self) -> None:
        """Release all resources; the environment is not used afterwards."""
        ...


class EnvironmentPool:
    """A thread-safe pool of one task's environments, created on demand and reused across episodes.

    `workers` environments may be stepped in parallel, and at most `max_environments` (None: any number) have an episode
    in progress. A batch does not wait for environments that have not returned for `batch_window_s` (None: it does).
    `seconds` accumulates the time spent inside `measure_time`.
    """

    def __init__(
        self,
        make: Callable[[], Environment],
        *,
        workers: int = 1,
        max_environments: int | None = None,
        batch_window_s: float | None = None,
    ) -> None:
        self._make = make
        self._idle: deque[Environment] = deque()
        self.workers, self.max_environments = workers, max_environments
        self.batch_window_s = batch_window_s
        self.seconds = 0.0

    @contextmanager
    def measure_time(self) -> Iterator[None]:
        """Measure the time of resetting and stepping environments."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began

    def acquire(self) -> Environment:
        """Return an idle or new environment. Raises the errors of its constructor."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._make()

    def release(self, environment: Environment, *, usable: bool) -> None:
        """Keep the environment for a later episode, or close it if its state is unknown."""
        if usable:
            self._idle.append(environment)
        else:
            close_environment(environment)

    def close(self) -> None:
        """Close all idle environments."""
        while self._idle:
            close_environment(self._idle.pop())


def close_environment(environment: Environment) -> None:
    """Close an environment; an exception has no effect on its finished episodes."""
    try:
        environment.close()
    except BaseException as error:
        raise_interruption(error)


@contextmanager
def closing_environment(environment: Environment) -> Iterator[None]:
    """Close an environment at the end of a block."""
    try:
        yield
    finally:
        close_environment(environment)
