"""Calling a reward for rows that are finished while others are still being written."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from ippo_cli.rewards.contract import Responses, Reward, RewardFunction, checked
from ippo_cli.types import Example

Said = Callable[[str, list[int], list[str]], None]
"""An agent, rows that it has finished, and their texts."""


@contextmanager
def overlapped(
    reward: RewardFunction, examples: Sequence[Example], agents: Sequence[str], rows: int
) -> Iterator[tuple[RewardFunction, Said | None]]:
    """The reward, and whom to tell about finished rows: as soon as `rows` of them are finished by every agent, the
    reward is called for them in a thread of its own. With `rows=0` nobody need be told, and the reward is itself."""
    if rows == 0:
        yield reward, None
        return
    early = EarlyReward(reward, examples, agents, rows)
    try:
        yield early, early.said
    finally:
        early.close()


class EarlyReward:
    """A reward function that has begun before it is called.

    One thread, since a reward need not be made for several. It helps where the reward waits or computes outside
    Python; Python's own work in it takes turns with the decoding.
    """

    def __init__(self, reward: RewardFunction, examples: Sequence[Example], agents: Sequence[str], rows: int) -> None:
        self._reward, self._examples, self._agents, self._at_once = reward, examples, list(agents), rows
        self._texts: list[dict[str, str]] = [{} for _ in examples]
        self._ready: list[int] = []
        self._begun: list[tuple[list[int], Future[Reward]]] = []
        self._known: list[tuple[list[int], Reward]] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reward")

    def said(self, agent: str, rows: list[int], texts: list[str]) -> None:
        """Note finished rows, and begin where enough are complete."""
        for row, text in zip(rows, texts, strict=True):
            self._texts[row][agent] = text
            if len(self._texts[row]) == len(self._agents):
                self._ready.append(row)
        while len(self._ready) >= self._at_once:
            part, self._ready = self._ready[: self._at_once], self._ready[self._at_once :]
            responses = {name: [self._texts[row][name] for row in part] for name in self._agents}
            self._begun.append((part, self._thread.submit(self._ask, part, responses)))

    def __call__(self, examples: Sequence[Example], responses: Responses) -> Reward:
        """All rows, in order. What failed in the thread is raised here, and asked again by the next call."""
        while self._begun:
            part, future = self._begun.pop()
            self._known.append((part, future.result()))
        known = {row for part, _ in self._known for row in part}
        rest = [row for row in range(len(examples)) if row not in known]
        if rest:
            asked = {name: [texts[row] for row in rest] for name, texts in responses.items()}
            self._known.append((rest, self._ask(rest, asked)))
        return _merged(self._known, self._agents, len(examples))

    def close(self) -> None:
        """Forget what has not begun; what has may end by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ask(self, rows: list[int], responses: Responses) -> Reward:
        return checked(self._reward([self._examples[row] for row in rows], responses), self._agents, len(rows))


def _merged(known: Sequence[tuple[list[int], Reward]], agents: Sequence[str], rows: int) -> Reward:
    """One answer from those of parts; NaN where a part does not give what another does."""

    def joined(pick: Callable[[Reward], Sequence[float] | None]) -> list[float]:
        numbers = [math.nan] * rows
        for part, reward in known:
            for row, number in zip(part, pick(reward) or [math.nan] * len(part), strict=True):
                numbers[row] = number
        return numbers

    names = {name for _, reward in known for name in reward.parts}
    own = any(reward.agent for _, reward in known)
    return Reward(
        team=joined(lambda reward: reward.team) if any(reward.team is not None for _, reward in known) else None,
        agent={name: joined(lambda reward, name=name: reward.agent.get(name)) for name in agents} if own else {},
        parts={name: joined(lambda reward, name=name: reward.parts.get(name)) for name in sorted(names)},
        valid=[bool(number) for number in joined(lambda reward: _valid(reward))],
    )


def _valid(reward: Reward) -> Sequence[float]:
    numbers = reward.team if reward.team is not None else next(iter(reward.agent.values()))
    return [1.0] * len(numbers) if reward.valid is None else [float(one) for one in reward.valid]
