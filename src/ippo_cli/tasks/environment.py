"""What an episode is played in: an environment that tells agents something and takes what they answer.

Conversations and worlds have one interface. A conversation hands on what agents say to each other and is judged by a
reward at its end; a world (a Gymnasium environment, a game) answers by itself and pays as it goes.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from ippo_cli.types import Example


@dataclass(frozen=True, slots=True)
class Action:
    """What an agent answered."""

    text: str
    finished: bool = True  # ended by itself; False: cut at a limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What followed from the actions of one step.

    While the episode goes on, `observations` holds those who act next, each with what it is told now. At its end it
    holds what agents see last, which nobody answers: a truncated episode is valued there.
    """

    observations: Mapping[str, str]  # agent -> text
    rewards: Mapping[str, float] = field(default_factory=dict)  # agent -> what this step paid it; missing counts as 0
    terminated: bool = False  # the episode ended by itself
    truncated: bool = False  # it was cut at a limit of its own
    unfinished: frozenset[str] = frozenset()  # agents whose part was cut although the episode has terminated
    ended: frozenset[str] = frozenset()  # agents whose own part has ended by itself, though others may go on or be cut
    parts: Mapping[str, float] = field(
        default_factory=dict
    )  # numbers for the log, such as success; the last one counts

    def with_observations(self, observations: Mapping[str, str]) -> Step:
        """The same step with other observations. (`dataclasses.replace` takes longer than a small world's own step.)"""
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
    """What the user's code returned is of another kind than it must be, whatever it was answered."""


class Environment(Protocol):
    """One episode at a time, of one or several agents. May raise anything: that fails its episode and no other."""

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        """Begin an episode: who acts first, each with what it is told. The same example and seed begin the same one."""
        ...

    def step(self, actions: Mapping[str, Action]) -> Step:
        """Take the actions of all who were to act."""
        ...

    def close(self) -> None:
        """Give everything back; the environment is not used afterwards."""
        ...


class EnvironmentPool:
    """Environments of one task, made when there is none to be had and used for one episode after another.

    `workers` of them may be stepped at once where they are slow. May be used by several threads. `seconds` counts up
    what was spent `at_work` on them.
    """

    def __init__(self, make: Callable[[], Environment], *, workers: int = 1) -> None:
        self._make = make
        self._idle: deque[Environment] = deque()
        self.workers = workers
        self.seconds = 0.0

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """The time in which environments are reset or stepped, and nothing else is done."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - began

    def take(self) -> Environment:
        """One that nobody else has. Raises what making one raises."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._make()

    def release(self, environment: Environment, *, usable: bool) -> None:
        """Keep it for a later episode, or close it where it may be in any state."""
        if usable:
            self._idle.append(environment)
        else:
            _close(environment)

    def close(self) -> None:
        """Close all that are idle."""
        while self._idle:
            _close(self._idle.pop())


def _close(environment: Environment) -> None:
    with suppress(Exception):  # it is not used any more, and what was played is played
        environment.close()
