"""Calling a reward for episodes that are complete while others are still being collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from ippo_cli.rewards.contract import Reward, RewardFunction, validate_reward
from ippo_cli.types import Episode

OnFinished = Callable[[Sequence[int], Sequence[Episode]], None]
"""Rows of this rank's buffer whose episodes are complete, and these episodes."""
StreamedRewards = Callable[[], list[tuple[list[int], Reward | BaseException]]]
"""The parts that were asked about early, each with the reward's answer or what it raised."""


@contextmanager
def streaming_reward(reward: RewardFunction, agents: Sequence[str], rows: int) -> Iterator[StreamingReward | None]:
    """Whom to tell about complete episodes: as soon as there are `rows` of them, the reward is called for them in a
    thread of its own. With `rows=0` nobody need be told."""
    if rows == 0:
        yield None
        return
    early = StreamingReward(reward, agents, rows)
    try:
        yield early
    finally:
        early.close()


class StreamingReward:
    """A reward that is called for complete episodes before all are.

    One thread, since a reward need not be made for several. It helps where the reward waits or computes outside
    Python; Python's own work in it takes turns with the decoding.
    """

    def __init__(self, reward: RewardFunction, agents: Sequence[str], rows: int) -> None:
        self._reward, self._agents, self._batch_size = reward, list(agents), rows
        self._ready: list[tuple[int, Episode]] = []
        self._futures: list[tuple[list[int], Future[Reward]]] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reward")

    def on_finished(self, rows: Sequence[int], episodes: Sequence[Episode]) -> None:
        """Note complete episodes, and begin where enough are. A failed one has no reward and is not asked about."""
        finished = zip(rows, episodes, strict=True)
        self._ready += [(row, episode) for row, episode in finished if episode.failure is None]
        while len(self._ready) >= self._batch_size:
            part, self._ready = self._ready[: self._batch_size], self._ready[self._batch_size :]
            future = self._thread.submit(self._ask, [episode for _, episode in part])
            self._futures.append(([row for row, _ in part], future))

    def answered(self) -> list[tuple[list[int], Reward | BaseException]]:
        """The parts that were asked about, each with its answer or what the reward raised; waits for the last one."""
        return [(part, future.exception() or future.result()) for part, future in self._futures]

    def close(self) -> None:
        """Forget what has not begun; what has may end by itself."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _ask(self, episodes: list[Episode]) -> Reward:
        return validate_reward(self._reward(episodes), self._agents, episodes)
