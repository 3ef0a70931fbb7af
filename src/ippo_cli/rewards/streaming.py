"""Calling a reward for rows that are finished while others are still being written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from ippo_cli.rewards.contract import Responses, Reward, RewardFunction, checked
from ippo_cli.types import Example

OnFinished = Callable[[str, list[int], list[str]], None]
"""An agent, rows that it has finished, and their texts."""
StreamedAnswers = Callable[[], list[tuple[list[int], Reward | BaseException]]]
"""The parts that were asked about early, each with the reward's answer or what it raised."""


@contextmanager
def streaming_reward(
    reward: RewardFunction, examples: Sequence[Example], agents: Sequence[str], rows: int
) -> Iterator[StreamingReward | None]:
    """Whom to tell about finished rows: as soon as `rows` of them are finished by every agent, the reward is called for
    them in a thread of its own. With `rows=0` nobody need be told."""
    if rows == 0:
        yield None
        return
    early = StreamingReward(reward, examples, agents, rows)
    try:
        yield early
    finally:
        early.close()


class StreamingReward:
    """A reward that is called for finished rows before all are.

    One thread, since a reward need not be made for several. It helps where the reward waits or computes outside
    Python; Python's own work in it takes turns with the decoding.
    """

    def __init__(self, reward: RewardFunction, examples: Sequence[Example], agents: Sequence[str], rows: int) -> None:
        self._reward, self._examples, self._agents, self._at_once = reward, examples, list(agents), rows
        self._texts: list[dict[str, str]] = [{} for _ in examples]
        self._ready: list[int] = []
        self._begun: list[tuple[list[int], Future[Reward]]] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reward")

    def on_finished(self, agent: str, rows: list[int], texts: list[str]) -> None:
        """Note finished rows, and begin where enough are complete."""
        for row, text in zip(rows, texts, strict=True):
            self._texts[row][agent] = text
            if len(self._texts[row]) == len(self._agents):
                self._ready.append(row)
        while len(self._ready) >= self._at_once:
            part, self._ready = self._ready[: self._at_once], self._ready[self._at_once :]
            responses = {name: [self._texts[row][name] for row in part] for name in self._agents}
            self._begun.append((part, self._thread.submit(self._ask, part, responses)))

    def answered(self) -> list[tuple[list[int], Reward | BaseException]]:
        """The parts that were asked about, each with its answer or what the reward raised; waits for the last one."""
        return [(part, future.exception() or future.result()) for part, future in self._begun]

    def close(self) -> None:
        """Forget what has not begun; what has may end by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ask(self, rows: list[int], responses: Responses) -> Reward:
        return checked(self._reward([self._examples[row] for row in rows], responses), self._agents, len(rows))
