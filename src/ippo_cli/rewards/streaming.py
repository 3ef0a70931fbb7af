"""Calls the reward for finished episodes while other episodes are still being collected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from ippo_cli.rewards.contract import Reward, RewardFunction, validate_reward
from ippo_cli.rewards.placed import find_reward_group
from ippo_cli.types import Episode

OnFinished = Callable[[Sequence[int], Sequence[Episode]], None]
"""Called with row indices of this rank's buffer and their finished episodes."""
StreamedRewards = Callable[[], list[tuple[list[int], Reward | BaseException]]]
"""The parts that were scored early: row indices, and the reward or the exception that it raised."""


@contextmanager
def streaming_reward(reward: RewardFunction, agents: Sequence[str], rows: int) -> Iterator[StreamingReward | None]:
    """Yield a `StreamingReward` with a batch size of `rows`; None if `rows=0`, or if the reward is on other ranks."""
    if rows == 0 or find_reward_group(reward) is not None:
        yield None
        return
    early = StreamingReward(reward, agents, rows)
    try:
        yield early
    finally:
        early.close()


class StreamingReward:
    """Calls a reward for finished episodes before the buffer is complete.

    Uses one thread, since a reward need not be thread-safe. This saves time if the reward waits or computes outside
    Python; Python code competes with decoding for the interpreter lock.
    """

    def __init__(self, reward: RewardFunction, agents: Sequence[str], rows: int) -> None:
        self._reward, self._agents, self._batch_size = reward, list(agents), rows
        self._ready: list[tuple[int, Episode]] = []
        self._futures: list[tuple[list[int], Future[Reward]]] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reward")

    def on_finished(self, rows: Sequence[int], episodes: Sequence[Episode]) -> None:
        """Add finished episodes, and call the reward for full batches. Failed episodes are skipped."""
        finished = zip(rows, episodes, strict=True)
        self._ready += [(row, episode) for row, episode in finished if episode.failure is None]
        while len(self._ready) >= self._batch_size:
            part, self._ready = self._ready[: self._batch_size], self._ready[self._batch_size :]
            future = self._thread.submit(self._call_reward, [episode for _, episode in part])
            self._futures.append(([row for row, _ in part], future))

    def wait_for_rewards(self) -> list[tuple[list[int], Reward | BaseException]]:
        """The submitted parts with their rewards or exceptions; blocks until all are finished."""
        return [(part, future.exception() or future.result()) for part, future in self._futures]

    def close(self) -> None:
        """Cancel calls that have not started; does not wait for a running call."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _call_reward(self, episodes: list[Episode]) -> Reward:
        return validate_reward(self._reward(episodes), self._agents, episodes)
