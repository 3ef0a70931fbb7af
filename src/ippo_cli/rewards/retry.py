"""Retries of failed reward calls: first the whole batch, then halves, so that a bad row does not affect others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ippo_cli.config.errors import raise_interruption
from ippo_cli.rewards.contract import LengthError, Numbers, Reward, select_rows
from ippo_cli.rewards.episodes import num_steps
from ippo_cli.types import Episode

MAX_ATTEMPTS = 3
RewardCall = Callable[[list[int]], Reward]
"""Maps row indices of the buffer to the validated reward of these rows."""


@dataclass(kw_only=True)
class RewardRetry:
    """Calls a reward with retries, and collects the results by part and the number of failed rows."""

    call: RewardCall
    splittable: bool  # whether the reward may be called for a subset of a part
    failure_limit: float  # no more calls after this many failed rows, since the run will stop
    parts: list[tuple[list[int], Reward]] = field(default_factory=list)
    failed: int = 0  # rows without a reward because the reward call failed
    failure: Exception | None = None  # the first failure

    def score_rows(self, rows: list[int], first: Reward | BaseException | None = None) -> None:
        """Call the reward for all rows up to `MAX_ATTEMPTS` times, then for halves down to single rows.

        `first` is the result of an earlier attempt.
        """
        if isinstance(first, Reward):
            self._record_answer(rows, first)
            return
        if self.failure is not None and self.failed > self.failure_limit:
            self.count_failed(rows, self.failure)
            return
        error = None if first is None else as_failure(first)
        for _ in range(MAX_ATTEMPTS if error is None else MAX_ATTEMPTS - 1):
            error = self._attempt(rows)
            if error is None:
                return
        assert error is not None
        self._split_rows(rows, error)

    def count_failed(self, rows: Sequence[int], error: Exception) -> None:
        """Count rows without a reward."""
        self.failed += len(rows)
        self.note_failure(error)

    def note_failure(self, error: Exception) -> None:
        """Record the failure of an episode: it has no reward, but does not count as a failed reward call."""
        self.failure = self.failure or error

    def merge(self, agents: Sequence[str], episodes: Sequence[Episode]) -> Reward:
        """One `Reward` of all rows; see `merge_rewards`."""
        return merge_rewards(self.parts, agents, episodes)

    def _attempt(self, rows: list[int]) -> Exception | None:
        try:
            answer = self.call(rows)
        except BaseException as error:  # a user's function may raise anything; counted as a failed row
            return as_failure(error)
        self._record_answer(rows, answer)
        return None

    def _record_answer(self, rows: list[int], answer: Reward) -> None:
        """Store the rows with a result; retry the failed rows of a successful call without the other rows."""
        attempts = 1
        failures = answer.failures
        while failures:
            if answered := [place for place in range(len(rows)) if place not in failures]:
                self.parts.append(([rows[place] for place in answered], select_rows(answer, answered)))
            rows = [rows[place] for place in sorted(failures)]
            error = failures[min(failures)]
            is_final = (
                attempts == MAX_ATTEMPTS or answer.final or not self.splittable or self.failed > self.failure_limit
            )
            if is_final:
                self.count_failed(rows, error)
                return
            attempts += 1
            try:
                answer = self.call(rows)
                failures = answer.failures
            except BaseException as raised:
                failures = dict.fromkeys(range(len(rows)), as_failure(raised))
        self.parts.append((rows, answer))

    def _split_rows(self, rows: list[int], error: Exception) -> None:
        """Bisect a failing part to find the rows that have a reward."""
        # A wrong number of results is a bug in the function, which calls for single rows would hide.
        if len(rows) == 1 or not self.splittable or isinstance(error, LengthError):
            self.count_failed(rows, error)
            return
        middle = len(rows) // 2
        for half in (rows[:middle], rows[middle:]):
            if self.failed > self.failure_limit:
                self.count_failed(half, error)
            elif (own := self._attempt(half)) is not None:
                self._split_rows(half, own)


def merge_rewards(
    parts: Sequence[tuple[list[int], Reward]], agents: Sequence[str], episodes: Sequence[Episode]
) -> Reward:
    """One `Reward` of all rows, from parts with their row indices.

    Rows in no part are NaN and not valid; numbers that only other parts have are NaN.
    """
    if len(parts) == 1 and parts[0][0] == list(range(len(episodes))):
        return parts[0][1]

    def merge_numbers(pick: Callable[[Reward], Numbers | None]) -> list[float]:
        numbers = [math.nan] * len(episodes)
        for part, reward in parts:
            for row, number in zip(part, pick(reward) or [math.nan] * len(part), strict=True):
                numbers[row] = number
        return numbers

    def merge_nested(lengths: Sequence[int], pick: Callable[[Reward], Sequence[Numbers] | None]) -> list[list[float]]:
        numbers = [[math.nan] * length for length in lengths]
        for part, reward in parts:
            for row, own in zip(part, pick(reward) or [numbers[row] for row in part], strict=True):
                numbers[row] = list(own)
        return numbers

    valid = [False] * len(episodes)
    for part, reward in parts:
        for row, usable in zip(part, [True] * len(part) if reward.valid is None else reward.valid, strict=True):
            valid[row] = usable
    # A part without any result has NaN for kinds of numbers that the reward may not have.
    answers = [reward for _, reward in parts if reward.valid is None or any(reward.valid)]
    answers = answers or [reward for _, reward in parts]
    names = sorted({name for reward in answers for name in reward.parts})
    components = list(dict.fromkeys(name for reward in answers for name in reward.components))
    steps = [num_steps(episode) for episode in episodes]
    turns = {name: [len(episode.turns_of_agent(name)) for episode in episodes] for name in agents}
    # Without any result, `team` and `agent` are both NaN.
    team = not answers or any(reward.team is not None for reward in answers)
    own = not answers or any(reward.agent for reward in answers)
    by_step = any(reward.team_by_step is not None for reward in answers)
    by_turn = any(reward.agent_by_turn for reward in answers)
    turn_numbers = {
        name: merge_nested(turns[name], lambda reward, name=name: reward.agent_by_turn.get(name)) for name in agents
    }
    return Reward(
        team=merge_numbers(lambda reward: reward.team) if team else None,
        agent={name: merge_numbers(lambda reward, name=name: reward.agent.get(name)) for name in agents} if own else {},
        team_by_step=merge_nested(steps, lambda reward: reward.team_by_step) if by_step else None,
        agent_by_turn=turn_numbers if by_turn else {},
        parts={name: merge_numbers(lambda reward, name=name: reward.parts.get(name)) for name in names},
        valid=valid,
        components={name: merge_rewards(_component_parts(parts, name), agents, episodes) for name in components},
    )


def _component_parts(parts: Sequence[tuple[list[int], Reward]], name: str) -> list[tuple[list[int], Reward]]:
    return [(rows, reward.components[name]) for rows, reward in parts if name in reward.components]


def as_failure(error: BaseException) -> Exception:
    """The exception to count as a failed reward or episode; raises `IppoError`s and interruptions."""
    raise_interruption(error)
    if isinstance(error, SystemExit):  # must not end the run with a success status
        return RuntimeError(f"user code called exit({error.code})").with_traceback(error.__traceback__)
    if isinstance(error, Exception):
        return error
    # Such as asyncio's `CancelledError`: it must not end the run either.
    return RuntimeError(f"user code raised {type(error).__name__}: {error}").with_traceback(error.__traceback__)
