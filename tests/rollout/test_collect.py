"""Collecting episodes: determinism of turns, failing and slow environments, and streaming of finished episodes."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from players import Players, Rounds, transcript

from ippo_cli.config.errors import ConfigError, PreemptionRequested
from ippo_cli.rollout import episode_state
from ippo_cli.rollout.generator import SamplingStream
from ippo_cli.rollout.rows import build_rollout
from ippo_cli.tasks.environment import Action, EnvironmentPool, Step
from ippo_cli.types import Episode, Example


@pytest.fixture(scope="module", params=["hf", "engine"])
def players(request: pytest.FixtureRequest) -> Players:
    return Players("low", "high", with_engines=request.param == "engine")


@pytest.fixture(scope="module")
def expected(players: Players) -> list[Episode]:
    """Eight episodes of one to three rounds."""
    return players.play(Rounds)


def same(found: Episode, wanted: Episode) -> None:
    """Assert equal tokens; log-probabilities may differ by rounding."""
    assert transcript(found) == transcript(wanted)
    assert (found.index, found.rewards, found.terminated) == (wanted.index, wanted.rewards, wanted.terminated)
    for one, other in zip(found.turns, wanted.turns, strict=True):
        torch.testing.assert_close(one.completion.logprobs, other.completion.logprobs, atol=1e-5, rtol=0)


class Unlike(Rounds):
    """Rows other than 2 and 4 have other lengths."""

    def length(self, row: int) -> int:
        return super().length(row) if row in (2, 4) else 1 + (row + 1) % 3


@pytest.mark.parametrize(
    "changes",
    [
        {"decode_batch_size": 1},
        {"decode_batch_size": 3, "continues": True},
        {"decode_batch_size": 16, "continues": True},
        {"rows": [2, 4]},
        {"rows": [4, 7, 2, 0]},
        {"rows": [2, 100, 101, 102, 103, 104, 4], "workers": 4},
        {"make": Unlike},
        {"make": Unlike, "continues": True},
    ],
)
def test_turn_independent_of_batch_and_rank(players: Players, expected: list[Episode], changes: dict[str, Any]) -> None:
    found = {one.index: one for one in players.play(**{"make": Rounds, **changes})}
    for row in (2, 4):
        assert len(expected[row].turns) == 2 * (1 + row % 3)
        same(found[row], expected[row])


@pytest.mark.parametrize(
    "draws", [SamplingStream(seed=4, purpose="train/1"), SamplingStream(seed=3, purpose="train/2")]
)
def test_turn_depends_on_seed_and_purpose(players: Players, expected: list[Episode], draws: SamplingStream) -> None:
    found = players.play(Rounds, draws=draws)
    assert all(transcript(one) != transcript(other) for one, other in zip(found, expected, strict=True))


class Deaf(Rounds):
    """The same observation for every row and round."""

    def length(self, row: int) -> int:
        return 3

    def observations(self) -> dict[str, str]:
        return {agent: "?" for agent in self.agents}


def test_turn_depends_on_agent_index_and_turn() -> None:
    players = Players("low", "high", context_mode="last_only")
    players.policies["high"].held_policy = players.policies["low"].policy
    answers = {
        (turn.agent, episode.index, turn.step): turn.completion.text
        for episode in players.play(Deaf)
        for turn in episode.turns
    }
    assert len(answers) == 2 * 8 * 3
    # The same model reads the same text: without the index, all samples would be equal.
    for axis in range(3):
        along: dict[Any, set[str]] = {}
        for place, text in answers.items():
            along.setdefault((*place[:axis], *place[axis + 1 :]), set()).add(text)
        assert sum(len(texts) > 1 for texts in along.values()) > len(along) / 2


class Failing(Rounds):
    """Row 1 fails at reset, row 2 at its second step, and other rows violate the environment's contract."""

    def length(self, row: int) -> int:
        return 3

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        result = super().reset(example, seed)
        match self.row:
            case 1:
                raise OSError("no board")
            case 3:
                return {}
            case 4:
                return {"low": 7, "high": "x"}  # type: ignore[dict-item]
        return result

    def step(self, actions: Mapping[str, Action]) -> Step:
        step = super().step(actions)
        if self.number != 2:
            return step
        match self.row:
            case 2:
                raise ValueError("no such move")
            case 5:
                return Step(observations={"nobody": "hello", **step.observations})
            case 6:
                return Step(observations={})
            case 7:
                return Step(observations={"low": None})  # type: ignore[dict-item]
            case 8:
                return Step(observations=None)  # type: ignore[arg-type]
            case 9:
                return (step.observations, 0.0, False, False, {})  # type: ignore[return-value]
            case 10:
                return Step(observations=step.observations, rewards={"low": "much"})  # type: ignore[dict-item]
            case 11:
                return Step(observations={"nobody": "bye"}, truncated=True)
            case 12:
                sys.exit(0)
            case 13:
                return Step(observations={"low": "a\ud800", "high": "x"})
            case 14:
                return Step(observations=step.observations, rewards={"low": float("nan")})
            case 15:
                return Step(observations=step.observations, rewards={"low": 1e308})
            case 16:
                return Step(observations=step.observations, parts={f"speed{n}": 1.0 for n in range(200)})
            case 18:
                raise asyncio.CancelledError
            case 19:
                raise BaseException("odd")
        return step


class Long(Rounds):
    def length(self, row: int) -> int:
        return 3


FAILURES = {
    1: "no board",
    2: "no such move",
    3: "returns no observation at reset",
    4: "returned 7 as the observation of low",
    5: "returns an observation for 'nobody'; agents are low high",
    6: "has not ended but returns no observation",
    7: "returned None as the observation of low",
    8: "'NoneType'",
    9: "'tuple'",
    10: "could not convert string to float",
    11: "returns an observation for 'nobody'",
    12: "user code called exit(0)",
    13: "the observation of low has an unpaired surrogate",
    14: "returned nan as the reward of low",
    15: "returned 1e+308 as the reward of low",
    16: "returned 200 numbers to log; at most 100",
    18: "user code raised CancelledError",
    19: "user code raised BaseException: odd",
}


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("streamed", [False, True])
def test_environment_failure_fails_only_its_episode(players: Players, workers: int, streamed: bool) -> None:
    rows, result = range(20), []
    made: list[Failing] = []
    closed: list[Any] = []

    class Noted(Failing):
        def __init__(self) -> None:
            made.append(self)

        def close(self) -> None:
            closed.append(self)
            raise SystemExit("no such file") if len(closed) % 2 else asyncio.CancelledError

    pool = EnvironmentPool(Noted, workers=workers)
    listen = (lambda places, _: result.extend(places)) if streamed else None
    found = players.play(pool, rows, on_episodes=listen)
    expected = players.play(Long, rows)
    for row, episode in enumerate(found):
        if row not in FAILURES:
            assert episode.failure is None
            same(episode, expected[row])
            continue
        assert FAILURES[row] in str(episode.failure)
        assert not episode.terminated
        spoken = transcript(episode)
        assert spoken == transcript(expected[row])[: len(spoken)], "messages before the failure are kept"
        assert len(spoken) == (0 if row in (1, 3, 4) else 4)
    assert len(closed) == len(FAILURES), "a failed environment is not reused"
    assert len(pool._idle) == len(rows) - len(FAILURES)
    assert sorted(result) == ([0, 17] if streamed else [])


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("limit", [1, 3, 20])
def test_limited_environments_give_the_same_episodes(players: Players, workers: int, limit: int) -> None:
    rows = range(18)
    lock, made, in_progress, most = threading.Lock(), [0], [0], [0]

    class Counted(Failing):
        def __init__(self) -> None:
            made[0] += 1

        def reset(self, example: Example, seed: int) -> Mapping[str, str]:
            with lock:
                in_progress[0] += 1
                most[0] = max(most[0], in_progress[0])
            return super().reset(example, seed)

    class Counting(EnvironmentPool):
        def release(self, environment: Any, *, usable: bool) -> None:
            with lock:
                in_progress[0] -= 1
            super().release(environment, usable=usable)

    result: list[int] = []
    pool = Counting(Counted, workers=workers, max_environments=limit)
    found = players.play(pool, rows, on_episodes=lambda places, _: result.extend(places))
    for episode, wanted in zip(found, players.play(Failing, rows), strict=True):
        same(episode, wanted)
        assert str(episode.failure) == str(wanted.failure)
    assert (most[0], in_progress[0]) == (min(limit, len(rows)), 0)
    assert made[0] <= limit + len(FAILURES)
    assert sorted(result) == [0, 17]


class Endless(Rounds):
    def length(self, row: int) -> int:
        return 1 << 30


def test_endless_environment_truncated_by_context(players: Players) -> None:
    found = players.play(Endless, range(3), context_limit=40)
    assert {one.truncation for one in found} == {"context"}
    for one in found:
        assert not one.terminated
        assert one.failure is None
        assert all(len(turn.prompt) + len(turn.completion.ids) <= 40 for turn in one.turns)
        known = {turn.agent: len(turn.prompt) + len(turn.completion.ids) for turn in one.turns}
        assert any(length + len(one.last_observations["low"]) >= 40 for length in known.values())


def test_endless_environment_fails_at_step_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(episode_state, "MAX_STEPS", 6)
    found = Players("low", "high", context_mode="last_only").play(Endless, range(3), context_limit=40)
    assert {str(one.failure) for one in found} == {"the environment has not ended after 6 steps"}
    assert {len(one.rewards) for one in found} == {6}


@pytest.mark.parametrize("cut", [False, True])
def test_episode_without_turns(players: Players, cut: bool) -> None:
    class Silent(Rounds):
        def step(self, actions: Mapping[str, Action]) -> Step:
            return Step(observations={}, terminated=not cut, truncated=cut)

    for one in players.play(Silent, range(3)):
        assert (one.terminated, one.truncation, one.failure) == (not cut, "environment" if cut else "", None)
        assert one.final == one.last_observations == {}


class Slow(Rounds):
    seconds = 0.1

    def length(self, row: int) -> int:
        return 1

    def step(self, actions: Mapping[str, Action]) -> Step:
        time.sleep(self.seconds)
        return super().step(actions)


@pytest.mark.parametrize("streamed", [False, True])
def test_slow_environments_step_in_parallel(players: Players, streamed: bool) -> None:
    players.play(Rounds, [0])  # excludes one-time initialisation from the timing
    result: list[int] = []
    listen = (lambda places, _: result.extend(places)) if streamed else None
    began = time.perf_counter()
    found = players.play(Slow, range(64), workers=16, on_episodes=listen, decode_batch_size=64, max_new_tokens=1)
    assert time.perf_counter() - began < 64 * Slow.seconds / 2
    assert len(found) == 64
    assert sorted(result) == (list(range(64)) if streamed else [])


class OneIsSlow(Rounds):
    """Row 1 waits in its first step until all others have ended, or for `patience_s`."""

    others: threading.Barrier
    patience_s = 10.0

    def length(self, row: int) -> int:
        return 3

    def step(self, actions: Mapping[str, Action]) -> Step:
        step = super().step(actions)
        if (step.terminated and self.row != 1) or (self.row == 1 and self.number == 1):
            self.others.wait(self.patience_s)
        return step


def test_slow_environment_does_not_hold_the_batches_of_others(players: Players) -> None:
    class Waiting(OneIsSlow):
        others = threading.Barrier(4)

    found = players.play(EnvironmentPool(Waiting, workers=4, batch_window_s=0.1), range(4))
    for episode, wanted in zip(found, players.play(Long, range(4)), strict=True):
        assert episode.failure is None
        same(episode, wanted)


@pytest.mark.parametrize("phase", ["reset", "step"])
def test_preemption_abandons_busy_environments(players: Players, phase: str) -> None:
    over, closed_at_work = threading.Event(), []

    class Asleep(Rounds):
        at_work = False

        def rest(self, where: str) -> None:
            if where == phase:
                self.at_work = True
                if self.row == 0:
                    time.sleep(0.05)  # slow enough that later steps use threads
                else:
                    over.wait(20)
                self.at_work = False

        def reset(self, example: Example, seed: int) -> Mapping[str, str]:
            self.row = example["row"]
            self.rest("reset")
            return super().reset(example, seed)

        def step(self, actions: Mapping[str, Action]) -> Step:
            self.rest("step")
            return super().step(actions)

        def close(self) -> None:
            closed_at_work.append(self.at_work)

    began = time.perf_counter()

    def poll() -> None:
        if time.perf_counter() - began > 0.4:
            raise PreemptionRequested

    with pytest.raises(PreemptionRequested):
        players.play(Asleep, range(12), workers=4, poll=poll)
    assert time.perf_counter() - began < 5
    over.set()
    assert closed_at_work
    assert not any(closed_at_work)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("phase", ["reset", "step"])
def test_configuration_error_is_raised(players: Players, phase: str, streamed: bool) -> None:
    class Mistaken(Rounds):
        def reset(self, example: Example, seed: int) -> Mapping[str, str]:
            return self.checked("reset", super().reset(example, seed))

        def step(self, actions: Mapping[str, Action]) -> Step:
            return self.checked("step", super().step(actions))

        def checked(self, where: str, result: Any) -> Any:
            if where == phase and self.row == 2:
                raise ConfigError("task.agents.low.template='{x}'", "names a field", "name another")
            return result

    with pytest.raises(ConfigError, match="names a field"):
        players.play(Mistaken, on_episodes=(lambda *_: None) if streamed else None)


class InTurn(Rounds):
    """One agent after the other."""

    def observations(self) -> dict[str, str]:
        return {self.agents[self.number % 2]: f"{self.row}.{self.number}:"}


@pytest.mark.parametrize("make", [Rounds, InTurn])
@pytest.mark.parametrize("workers", [1, 4])
def test_each_finished_episode_streamed_once(players: Players, make: Callable[[], Any], workers: int) -> None:
    result: list[Episode] = []
    counts: list[int] = []

    def listen(places: list[int], episodes: list[Episode]) -> None:
        assert [one.index for one in episodes] == places
        result.extend(episodes)
        counts.append(len(result))

    found = players.play(make, workers=workers, on_episodes=listen)
    assert sorted(one.index for one in result) == list(range(8))
    assert counts[0] < 8, "first episodes are streamed while others continue"
    for one in result:
        assert transcript(one) == transcript(found[one.index])
        assert (one.final, one.rewards) == (found[one.index].final, found[one.index].rewards)
    for one, other in zip(found, players.play(make), strict=True):
        same(one, other)


def test_truncated_episode_streamed_with_last_observation(players: Players) -> None:
    class Cut(Rounds):
        def step(self, actions: Mapping[str, Action]) -> Step:
            step = super().step(actions)
            return Step(observations=self.observations(), truncated=step.terminated)

    streamed: dict[int, Episode] = {}
    found = players.play(Cut, on_episodes=lambda places, episodes: streamed.update(zip(places, episodes, strict=True)))
    assert sorted(streamed) == list(range(8))
    for row, one in streamed.items():
        assert one.final == found[row].final
        assert one.final.keys() == {"low", "high"}


class Wordy(Rounds):
    """Row 1 begins with six letters, row 2 with more than 300, row 3 with none."""

    def length(self, row: int) -> int:
        return 1

    def observations(self) -> dict[str, str]:
        return {"low": "x" * {1: 6, 2: 301, 3: 0}.get(self.row, 3), "high": "x"}


@pytest.mark.parametrize("context_mode", ["append", "last_only"])
def test_unusable_first_prompt_fails_only_its_episode(context_mode: str) -> None:
    players = Players("low", "high", context_mode=context_mode)
    found = players.play(Wordy, range(5), context_limit=7, max_new_tokens=4)
    assert len(found[1].turns[0].completion.ids) == 1, "there was room for one token"
    assert [one.failure is None for one in found] == [True, True, False, False, True]
    found = players.play(Wordy, range(5), context_limit=6, max_new_tokens=4)
    assert [str(one.failure or "").partition(";")[0] for one in found] == [
        "",
        "rollout.max_prompt_tokens=300 allows agent low's prompt of 6 tokens, 'xxxxxx', which leaves no room for a "
        "response in its context of 6",
        f"rollout.max_prompt_tokens=300 does not allow agent low's prompt of 301 tokens, {'x' * 60!r}",
        "rollout.max_prompt_tokens=300 does not allow agent low's prompt of 0 tokens, ''",
        "",
    ]
    for row in (1, 2, 3):
        assert (found[row].turns, found[row].terminated, found[row].truncation) == ([], False, "")


class Growing(Rounds):
    """Row 1's observations grow by 40 letters per round; row 2 gets none later, rows 3 and 4 get one at the end."""

    def length(self, row: int) -> int:
        return 12

    def step(self, actions: Mapping[str, Action]) -> Step:
        step = super().step(actions)
        if self.row in (3, 4) and self.number == 2:
            return Step(observations={"low": "", "high": "x" * (1 if self.row == 3 else 301)}, truncated=True)
        return step

    def observations(self) -> dict[str, str]:
        first = "" if self.row == 2 and self.number else "x" * (1 + 40 * self.number * (self.row == 1))
        return {"low": first, "high": "x"}


def test_later_long_prompt_truncates_and_empty_prompt_fails() -> None:
    found = Players("low", "high", context_mode="last_only").play(Growing, range(5))
    plain, long, empty, silent, wordy = found
    assert (len(plain.turns), plain.terminated) == (24, True)
    assert (len(long.turns), long.truncation, long.failure) == (16, "context", None), "at 1 + 8 * 40 letters"
    assert (long.last_observations["low"], sorted(long.final)) == ("x" * 321, ["high"])
    assert "agent low's prompt of 0 tokens" in str(empty.failure)
    assert (len(empty.turns), empty.truncation) == (2, "")
    for one, final in ((silent, ["high"]), (wordy, [])):
        assert (one.truncation, one.failure, sorted(one.final)) == ("environment", None, final)


class Enormous(Rounds):
    """Row 1's first observation is enormous, row 2's second, row 3's last."""

    def length(self, row: int) -> int:
        return 3

    def step(self, actions: Mapping[str, Action]) -> Step:
        step = super().step(actions)
        last = {"low": "x" * (1 << 20), "high": "x"} if self.row == 3 else {}
        return Step(observations=last, truncated=True) if step.terminated else step

    def observations(self) -> dict[str, str]:
        return {"low": "x" * (1 << 20 if self.number == self.row - 1 else 2), "high": "x"}


def test_enormous_observation_ends_its_episode_and_is_not_kept(players: Players) -> None:
    plain, first, second, last = players.play(Enormous, range(4), workers=2)
    assert (len(plain.turns), plain.truncation) == (6, "environment")
    assert "prompt of more than 16384 tokens" in str(first.failure)
    assert (len(second.turns), second.truncation, second.failure) == (2, "context", None)
    assert (last.truncation, sorted(last.final)) == ("context", ["high"])
    for episode in (second, last):
        assert 512 < len(episode.last_observations["low"]) < 1 << 16


class OneLeaves(Rounds):
    """`low` terminates after its first round; `high` continues until it is truncated, in row 1 by its context."""

    def length(self, row: int) -> int:
        return 1 << 30 if row == 1 else 3

    def step(self, actions: Mapping[str, Action]) -> Step:
        step = super().step(actions)
        if step.terminated:
            return Step(observations=super().observations(), truncated=True)
        return Step(observations=self.observations(), ended=frozenset({"low"} if self.number == 1 else ()))

    def observations(self) -> dict[str, str]:
        return {"high": f"{self.number}:"} if self.number else super().observations()


def test_terminated_agent_finished_in_truncated_episode(players: Players) -> None:
    found = players.play(OneLeaves, range(2), context_limit=40)
    assert [one.truncation for one in found] == ["environment", "context"]
    for one in found:
        assert not one.terminated
        assert (one.finished("low"), one.finished("high")) == (True, False)
        assert len(one.turns_of_agent("low")) == 1
        assert "low" not in one.final, "no next prompt exists"
    assert sorted(found[0].last_observations) == ["high", "low"]
    rows = {name: build_rollout(found, name, device=torch.device("cpu"), filtered=False) for name in ("low", "high")}
    assert rows["low"].finished.tolist() == [True, True]
    assert rows["high"].finished.tolist() == [False, False]
    assert rows["low"].length.tolist() == rows["low"].response_mask.sum(dim=1).tolist()
