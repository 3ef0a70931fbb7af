"""Scores of agents from the numbers of a reward."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch
from spoken import spoken_once

from ippo_cli.config.errors import ConfigError, RewardError
from ippo_cli.config.schema import Processor
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.response_adapter import ResponseRewardAdapter
from ippo_cli.rewards.retry import MAX_ATTEMPTS
from ippo_cli.rewards.score import call_reward, reward_name, score
from ippo_cli.types import Scores

Make = Callable[..., Any]
ROWS = [{"n": row} for row in range(4)]
TEXTS = {"low": ["a", "b", "c", "d"], "high": ["e", "f", "g", "h"]}
EPISODES = spoken_once(ROWS, TEXTS)


def scored(reward: Reward, config: Any) -> dict[str, Scores]:
    return score(lambda episodes: reward, EPISODES, config, unobserved()).scores


def unobserved() -> dict[str, ScoreMoments]:
    return {name: ScoreMoments() for name in TEXTS}


def numbers(scores: Scores) -> list[float]:
    assert scores.score.shape == (4, 1)
    assert scores.score.dtype == torch.float32
    return scores.score[:, 0].tolist()


def test_reward_receives_examples_and_texts(settings: Make) -> None:
    seen: list[Any] = []

    def reward(examples: Any, responses: Any) -> Reward:
        seen.append((examples, responses))
        return Reward(team=[0.0] * len(examples))

    score(ResponseRewardAdapter(reward, list(TEXTS)), EPISODES, settings(), unobserved())
    assert seen == [(ROWS, TEXTS)]


def test_team_and_agent_weights(settings: Make) -> None:
    reward = Reward(team=[1, 2, 3, 4], agent={"low": [10, 20, 30, 40], "high": [0, 0, 0, 1]})
    found = scored(reward, settings(team_weight=0.5, agent_weight=2.0))
    assert numbers(found["low"]) == [20.5, 41.0, 61.5, 82.0]
    assert numbers(found["high"]) == [0.5, 1.0, 1.5, 4.0]


def test_default_uses_only_team_numbers(settings: Make) -> None:
    reward = Reward(team=[1, 2, 3, 4], agent={"low": [math.nan] * 4, "high": [9] * 4})
    found = scored(reward, settings())
    assert numbers(found["low"]) == numbers(found["high"]) == [1, 2, 3, 4]
    assert found["low"].valid.all()


@pytest.mark.parametrize(
    ("reward", "weights", "remedy"),
    [
        (Reward(agent={"low": [1] * 4, "high": [1] * 4}), (1.0, 0.0), "reward.agent_weight=1.0"),
        (Reward(team=[1] * 4), (0.0, 1.0), "reward.team_weight=1.0"),
    ],
)
def test_reward_without_effect_raises(
    reward: Reward, weights: tuple[float, float], remedy: str, settings: Make
) -> None:
    with pytest.raises(ConfigError, match=f"make every score 0: the reward returns .*; set {remedy}"):
        scored(reward, settings(team_weight=weights[0], agent_weight=weights[1]))


def test_two_agents_and_two_generations(settings: Make) -> None:
    """Two agents and two responses to one prompt: the field name determines the owner of the numbers."""
    asked = spoken_once([{"n": 0}, {"n": 0}], {"low": ["a", "b"], "high": ["c", "d"]})
    by_row = score(lambda episodes: Reward(team=[0.0, 1.0]), asked, settings(), unobserved()).scores
    for agent in ("low", "high"):
        assert by_row[agent].score[:, 0].tolist() == [0.0, 1.0]
    own = Reward(agent={"low": [0.0, 0.0], "high": [1.0, 1.0]})
    by_agent = score(lambda episodes: own, asked, settings(team_weight=0.0, agent_weight=1.0), unobserved()).scores
    assert by_agent["low"].score[:, 0].tolist() == [0.0, 0.0]
    assert by_agent["high"].score[:, 0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None, 1e300])
def test_non_finite_row_is_excluded(bad: Any, settings: Make) -> None:
    found = scored(Reward(team=[1, bad, 3, 4]), settings(processor=[Processor.shift], shift=5.0))
    assert found["low"].valid.tolist() == [True, False, True, True]
    assert numbers(found["low"]) == [6, 0, 8, 9]


def test_reward_may_mark_rows_invalid(settings: Make) -> None:
    found = scored(Reward(team=[1, 2, 3, 4], valid=[True, True, False, True]), settings())
    assert found["high"].valid.tolist() == [True, True, False, True]
    assert numbers(found["high"]) == [1, 2, 0, 4]


def test_nan_of_one_agent_does_not_affect_others(settings: Make) -> None:
    reward = Reward(agent={"low": [1, 2, 3, 4], "high": [1, math.nan, 3, 4]})
    found = scored(reward, settings(team_weight=0.0, agent_weight=1.0, processor=[Processor.zscore]))
    alone = scored(
        Reward(agent={"low": [1, 2, 3, 4], "high": [7, 8, 9, 0]}),
        settings(team_weight=0.0, agent_weight=1.0, processor=[Processor.zscore]),
    )
    assert torch.equal(found["low"].score, alone["low"].score)
    assert found["low"].valid.all()
    assert found["high"].valid.tolist() == [True, False, True, True]


def test_processor_order(settings: Make) -> None:
    reward = Reward(team=[-3, 0, 1, 5])
    values = {"scale": 2.0, "shift": 1.0, "clip_low": -1.0, "clip_high": 3.0}
    order = [Processor.scale, Processor.shift, Processor.clip]
    assert numbers(scored(reward, settings(processor=order, **values))["low"]) == [-1, 1, 3, 3]
    assert numbers(scored(reward, settings(processor=order[::-1], **values))["low"]) == [0, 2, 4, 8]
    twice = [Processor.scale, Processor.scale]
    assert numbers(scored(reward, settings(processor=twice, **values))["low"]) == [-12, 0, 4, 20]
    assert numbers(scored(reward, settings(processor=[], **values))["low"]) == [-3, 0, 1, 5]


def test_zscore_uses_valid_rows_of_each_agent(settings: Make) -> None:
    reward = Reward(team=[1, 2, 3, 1000], valid=[True, True, True, False])
    found = scored(reward, settings(processor=[Processor.zscore]))
    assert numbers(found["low"]) == pytest.approx([-1, 0, 1, 0])  # mean 2, deviation 1 (Bessel)


@pytest.mark.parametrize(("eps", "scaled"), [(0.99, True), (1.0, False), (1.01, False)])
def test_zscore_below_norm_eps(eps: float, scaled: bool, settings: Make) -> None:
    reward = Reward(team=[1, 2, 3, 0], valid=[True, True, True, False])
    found = scored(reward, settings(processor=[Processor.zscore], norm_eps=eps))
    assert numbers(found["low"]) == pytest.approx([-1, 0, 1, 0] if scaled else [1, 2, 3, 0])


def test_zscore_of_equal_scores(settings: Make) -> None:
    found = scored(Reward(team=[3] * 4), settings(processor=[Processor.zscore], norm_eps=0.0))
    assert numbers(found["low"]) == [3] * 4


def test_running_zscore_by_agent(settings: Make) -> None:
    config = settings(processor=[Processor.running_zscore], team_weight=0.0, agent_weight=1.0)
    moments = unobserved()

    def next_scores(low: list[float], high: list[float], *, observe: bool = True) -> dict[str, list[float]]:
        nonlocal moments
        before = moments
        found = score(
            lambda episodes: Reward(agent={"low": low, "high": high}),
            EPISODES,
            config,
            moments,
            observe=observe,
        )
        moments = found.moments
        assert observe or moments == before
        return {name: numbers(one) for name, one in found.scores.items()}

    first = next_scores([0, 0, 2, 2], [5, 5, 5, 5])
    # Equal to the zscore of the first buffer.
    assert first["low"] == pytest.approx([(x - 1) / (4 / 3) ** 0.5 for x in (0, 0, 2, 2)])
    assert first["high"] == [5] * 4
    second = next_scores([9, 9, 9, math.nan], [5, 5, 5, 9])
    mean, deviation = 31 / 7, statistics.stdev([0, 0, 2, 2, 9, 9, 9])
    assert second["low"] == pytest.approx([*[(9 - mean) / deviation] * 3, 0])
    aside = next_scores([9, 9, 9, 0], [5, 5, 5, 5], observe=False)
    assert aside["low"] == pytest.approx([*second["low"][:3], -mean / deviation])
    assert moments["low"].count == 7


def test_raw_scores_are_kept(settings: Make) -> None:
    reward = Reward(team=[1, 2, math.nan, 3])
    found = scored(reward, settings(processor=[Processor.scale], scale=2.0))["low"]
    assert found.raw.tolist() == [[1], [2], [0], [3]]
    assert numbers(found) == [2, 4, 0, 6]
    plain = scored(reward, settings())["low"]
    assert plain.raw is plain.score


def test_parts_are_logged(settings: Make) -> None:
    found = scored(Reward(team=[1] * 4, parts={"length": [1, None, 3, 4]}), settings(scale=9.0))  # type: ignore[list-item]
    assert found["low"].parts["length"][[0, 2, 3]].tolist() == [1, 3, 4]
    assert found["low"].parts["length"][1].isnan()


def test_exceeded_failure_budget_has_exit_code_12(settings: Make) -> None:
    reward = Reward(team=[1, math.nan, 3, 4])
    assert not scored(reward, settings(failure_budget=0.25))["low"].valid.all()
    with pytest.raises(RewardError, match=r"1 of 4 rows have no reward \(reward\.failure_budget=0\.24\)") as raised:
        scored(reward, settings(failure_budget=0.24))
    assert raised.value.exit_code == 12
    with pytest.raises(RewardError, match="its numbers are NaN or infinite, or marked as not valid"):
        scored(reward, settings(failure_budget=0.0))


def test_reward_name(settings: Make) -> None:
    assert reward_name(settings(function="my.py:one")) == "reward=function reward.function=my.py:one"


def test_transient_failure_is_retried(settings: Make) -> None:
    calls = []

    def reward(episodes: Any) -> Reward:
        calls.append(1)
        if len(calls) < MAX_ATTEMPTS:
            raise ConnectionError("busy")
        return Reward(team=[1.0] * len(episodes))

    found = score(reward, EPISODES, settings(failure_budget=0.0), unobserved())
    assert len(calls) == MAX_ATTEMPTS
    assert found.scores["low"].valid.all()
    assert found.failure is None


def test_message_of_failing_reward(settings: Make) -> None:
    def reward(episodes: Any) -> Reward:
        raise KeyError("answer")

    with pytest.raises(RewardError, match=r"4 of 4 rows have no reward .*; \S*test_score\.py:\d+: KeyError: 'answer'"):
        score(reward, EPISODES, settings(failure_budget=0.99), unobserved())
    found = score(reward, EPISODES, settings(failure_budget=1.0, team_weight=0.0, agent_weight=1.0), unobserved())
    assert not found.scores["low"].valid.any()
    assert found.scores["low"].failed.all()
    assert numbers(found.scores["low"]) == [0] * 4
    assert found.failure is not None
    assert found.failure.startswith("4 of 4 rows have no reward and are excluded from training; ")
    assert found.failure.endswith("KeyError: 'answer'")


def test_bare_list_raises(settings: Make, tmp_path: Any) -> None:
    from ippo_cli.rewards.function import FunctionReward

    (tmp_path / "bare.py").write_text("def f(examples, responses): return [1.0] * len(examples)")
    reward = ResponseRewardAdapter(FunctionReward(f"{tmp_path}/bare.py:f"), list(TEXTS))
    with pytest.raises(RewardError, match=r"TypeError: .* must return a dict with keys among team, agent"):
        score(reward, EPISODES, settings(failure_budget=0.5), unobserved())


def test_ippo_errors_are_not_retried(settings: Make) -> None:
    calls = []

    def reward(episodes: Any) -> Reward:
        calls.append(1)
        raise ConfigError("task.agents.low.answer='{x}'", "names a field", "name another")

    with pytest.raises(ConfigError):
        score(reward, EPISODES, settings(), unobserved())
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (SystemExit(0), r"user code called exit\(0\)"),
        (asyncio.CancelledError(), "user code raised CancelledError"),
        (BaseException("odd"), "user code raised BaseException: odd"),
    ],
)
def test_exit_in_reward_is_a_failure(settings: Make, error: BaseException, message: str) -> None:
    def reward(episodes: Any) -> Reward:
        raise error

    with pytest.raises(RewardError, match=message):
        score(reward, EPISODES, settings(failure_budget=0.5), unobserved())


def test_interrupt_is_not_a_reward_failure(settings: Make) -> None:
    def reward(episodes: Any) -> Reward:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call_reward(reward, EPISODES, list(TEXTS), settings())
