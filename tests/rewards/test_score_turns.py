"""Scores by turn: computed by hand, compared with a slow reference, and bitwise equal to rows for one turn."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from spoken import episode
from torch import Tensor

from ippo_cli.config.errors import ConfigError, RewardError
from ippo_cli.config.schema import Processor, RewardConfig
from ippo_cli.engine import distributed
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.environment import EnvironmentReward
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.processors import check_processor_functions
from ippo_cli.rewards.score import ScoreResult, check_unused_weights, score
from ippo_cli.types import Episode

Make = Callable[..., Any]
AGENTS = ["low", "high"]
# Row 0: `low` acts at steps 0 and 2, `high` at 1. Row 1: only `low`, at 0. Row 2: `high` at 0 and 1, `low` at 1.
THREE = [
    episode(("low", 0, ""), ("high", 1, ""), ("low", 2, "")),
    episode(("low", 0, "")),
    episode(("high", 0, ""), ("high", 1, ""), ("low", 1, "")),
]


def score_turns(
    reward: Any, episodes: Sequence[Episode], config: RewardConfig, agents: Sequence[str] = AGENTS
) -> ScoreResult:
    function = (lambda episodes: reward) if isinstance(reward, Reward) else reward
    return score(function, episodes, config, {name: ScoreMoments() for name in agents})


def test_episode_numbers_on_last_turn(settings: Make) -> None:
    reward = Reward(team=[1, 2, 3], agent={"low": [10, 20, 30], "high": [40, 50, 60]})
    found = score_turns(reward, THREE, settings(agent_weight=0.5)).scores
    assert found["low"].score.tolist() == [[0, 6], [12, 0], [18, 0]]
    assert found["high"].score.tolist() == [[21, 0], [0, 0], [0, 33]]


def test_numbers_by_turn_and_by_step(settings: Make) -> None:
    reward = Reward(
        team=[100, 200, 300],
        team_by_step=[[1, 2, 3], [4], [5, 6]],
        agent={"low": [1000, 0, 0], "high": [0, 0, 2000]},
        agent_by_turn={"low": [[0.25, 0.5], [0.75], [1.0]], "high": [[1.25], [], [1.5, 1.75]]},
    )
    team = score_turns(reward, THREE, settings()).scores
    assert team["low"].score.tolist() == [[3, 103], [204, 0], [311, 0]]  # step 1 belongs to the turn at 0
    assert team["high"].score.tolist() == [[106, 0], [0, 0], [5, 306]]  # step 0 belongs to the first turn, at 1
    own = score_turns(reward, THREE, settings(team_weight=0.0, agent_weight=2.0)).scores
    assert own["low"].score.tolist() == [[0.5, 2001], [1.5, 0], [2, 0]]
    assert own["high"].score.tolist() == [[2.5, 0], [0, 0], [3, 4003.5]]
    both = score_turns(reward, THREE, settings(team_weight=0.5, agent_weight=2.0)).scores
    for name in AGENTS:
        assert torch.equal(both[name].score, 0.5 * team[name].score + own[name].score)


def test_turn_weight(settings: Make) -> None:
    whole = Reward(team=[100, 200, 300], agent={"low": [1000, 0, 0], "high": [0, 0, 2000]})
    by_turn = {"low": [[0.25, 0.5], [0.75], [1.0]], "high": [[1.25], [], [1.5, 1.75]]}
    single = Reward(team_by_step=[[1, 2, 3], [4], [5, 6]], agent_by_turn=by_turn)
    both = Reward(team=whole.team, agent=whole.agent, team_by_step=single.team_by_step, agent_by_turn=by_turn)
    weights = {"team_weight": 0.5, "agent_weight": 2.0}
    expected = {
        name: score_turns(whole, THREE, settings(**weights)).scores[name].score
        + 0.25 * score_turns(single, THREE, settings(**weights)).scores[name].score
        for name in AGENTS
    }
    found = score_turns(both, THREE, settings(**weights, turn_weight=0.25)).scores
    assert all(torch.equal(found[name].score, expected[name]) for name in AGENTS)
    ended = score_turns(both, THREE, settings(**weights, turn_weight=0.0)).scores
    assert ended["low"].score.tolist() == [[0, 2050], [100, 0], [150, 0]]
    with pytest.raises(
        ConfigError, match=r"reward\.turn_weight=0\.0 makes every score 0: the reward returns only numbers by turn"
    ):
        score_turns(single, THREE, settings(**weights, turn_weight=0.0))


def test_weights_by_agent(settings: Make) -> None:
    by_turn = {"low": [[0.25, 0.5], [0.75], [1.0]], "high": [[1.25], [], [1.5, 1.75]]}
    team = Reward(team=[100, 200, 300], team_by_step=[[1, 2, 3], [4], [5, 6]], agent_by_turn=by_turn)
    single = Reward(agent_by_turn=by_turn)
    weights = {
        "low": settings(team_weight=0.5, agent_weight=2.0, turn_weight=0.25),
        "high": settings(team_weight=-1.0, agent_weight=1.0, turn_weight=0.0),
    }
    moments = dict.fromkeys(AGENTS, ScoreMoments())
    found = score(lambda _: team, THREE, settings(), moments, weights=weights).scores
    for name, own in weights.items():
        assert torch.equal(found[name].score, score_turns(team, THREE, own).scores[name].score)
    assert found["high"].score.tolist() == [[-100, 0], [0, 0], [0, -300]]
    with pytest.raises(ConfigError, match=r"^task\.agents\.high\.reward\.turn_weight=0\.0 makes every score 0"):
        score(lambda _: single, THREE, settings(), moments, weights=weights)


@pytest.mark.parametrize(
    ("given", "key", "message"),
    [
        ({"agent": {"low": [1.0], "high": [1.0]}}, "team_weight", "for the team"),
        ({"team": [1.0]}, "agent_weight", "for agents"),
        ({"team": [1.0], "agent": {"low": [1.0], "high": [1.0]}}, "turn_weight", "by turn"),
    ],
)
def test_unused_agent_weight_raises(given: dict[str, Any], key: str, message: str, settings: Make) -> None:
    weights = {"low": settings(), "high": settings(**{key: 0.5})}
    rule = rf"^task\.agents\.high\.reward\.{key}=0\.5 has no effect: the reward returns no numbers {message}"
    with pytest.raises(ConfigError, match=rule):
        check_unused_weights(Reward(**given), weights, settings())
    check_unused_weights(Reward(**given, valid=[False]), weights, settings())  # no row has a number
    full = Reward(team_by_step=[[1.0]], agent_by_turn={"low": [[1.0]], "high": [[1.0]]})
    check_unused_weights(full, weights, settings())
    check_unused_weights(Reward(**given), dict.fromkeys(AGENTS, settings(**{key: 0.5})), settings(**{key: 0.5}))


def test_agent_without_turns_is_neither_valid_nor_failed(settings: Make) -> None:
    config = settings(failure_budget=0.0, processor=[Processor.shift, Processor.zscore], shift=5.0)
    found = score_turns(Reward(team=[1, 2, 3]), THREE, config)
    assert found.failure is None
    assert found.scores["high"].valid.tolist() == [True, False, True]
    assert found.scores["high"].score[1].tolist() == found.scores["high"].raw[1].tolist() == [0, 0]
    assert not found.scores["high"].failed.any()
    assert found.scores["low"].valid.all()
    # The row without turns of `high` is not in its mean; 1 and 3 have the deviation sqrt(2).
    assert found.scores["high"].score.sum(dim=1).tolist() == pytest.approx([-(0.5**0.5), 0, 0.5**0.5])


def test_non_finite_turn_invalidates_row(settings: Make) -> None:
    config = settings(team_weight=0.0, agent_weight=1.0)
    by_turn = {"low": [[1, math.nan], [1], [1]], "high": [[1], [], [math.inf, 1]]}
    found = score_turns(Reward(agent_by_turn=by_turn), THREE, config).scores
    assert found["low"].valid.tolist() == [False, True, True]
    assert found["high"].failed.tolist() == [False, False, True]
    assert found["low"].score.tolist() == [[0, 0], [1, 0], [1, 0]]
    huge = {"low": [[3e38, 3e38], [1], [1]], "high": [[1], [], [1, 1]]}
    assert score_turns(Reward(agent_by_turn=huge), THREE, config).scores["low"].failed.tolist() == [True, False, False]


def test_failed_episode_is_reported_and_excluded(settings: Make) -> None:
    broken = [THREE[0], THREE[1], episode(("low", 0, ""), failure=RuntimeError("no such level"))]
    found = score_turns(lambda episodes: Reward(team=[1.0] * len(episodes)), broken, settings(failure_budget=0.5))
    expected = "1 of 3 rows have no reward and are excluded from training; RuntimeError: no such level"
    assert found.failure == expected
    for name in AGENTS:
        assert found.scores[name].failed.tolist() == [False, False, True]
        assert not found.scores[name].valid[2]


def test_environment_rewards_by_turn(settings: Make) -> None:
    walk = episode(
        *(("low", step, "") for step in range(3)), rewards=[{"low": -1.0}, {"low": -1.0}, {"low": 20.0}], parts={"n": 3}
    )
    found = score_turns(EnvironmentReward(["low"]), [walk], settings(), ["low"]).scores["low"]
    assert found.score.tolist() == [[-1, -1, 20]]
    assert found.parts["n"].tolist() == [3]


def test_processors_by_turn(settings: Make) -> None:
    """The totals of two rows are 6 and 2: mean 4, deviation sqrt(8)."""
    rows = [episode(("low", 0, ""), ("low", 1, ""), ("low", 2, "")), episode(("low", 0, ""))]
    reward = Reward(team_by_step=[[1, 2, 3], [2]])
    deviation = 8**0.5

    def after(*processor: Processor, **values: float) -> list[list[float]]:
        found = score_turns(reward, rows, settings(processor=list(processor), **values), ["low"])
        return found.scores["low"].score.tolist()

    assert after(Processor.scale, scale=2.0) == [[2, 4, 6], [4, 0, 0]]
    assert after(Processor.shift, shift=0.5) == [[1, 2, 3.5], [2.5, 0, 0]]
    assert after(Processor.clip, clip_low=1.5, clip_high=2.5) == [[1.5, 2, 2.5], [2, 0, 0]]
    standard = [[1 / deviation, 2 / deviation, -1 / deviation], [-2 / deviation, 0, 0]]
    for processor in (Processor.zscore, Processor.running_zscore):
        assert after(processor) == [pytest.approx(row) for row in standard]


PROCESSORS = list(Processor)


def slowly(turns: list[list[float]], processor: list[Processor], config: RewardConfig) -> list[list[float]]:
    """Reference of the processor chain over the turns of each row, with empty moments; empty rows stay empty."""
    seen: list[float] = []
    for step in processor:
        totals = [sum(row) for row in turns if row]
        match step:
            case Processor.scale:
                turns = [[x * config.scale for x in row] for row in turns]
            case Processor.clip:
                turns = [[min(max(x, config.clip_low), config.clip_high) for x in row] for row in turns]
            case Processor.shift:
                turns = [[*row[:-1], row[-1] + config.shift] if row else [] for row in turns]
            case _:
                seen = seen + totals if step is Processor.running_zscore else seen
                of = seen if step is Processor.running_zscore else totals
                mean, deviation = statistics.mean(of), statistics.stdev(of)
                turns = [
                    [*(x / deviation for x in row[:-1]), (row[-1] - mean) / deviation] if row else [] for row in turns
                ]
    return turns


@pytest.mark.parametrize("seed", range(12))
def test_processor_chains_match_reference(seed: int, settings: Make) -> None:
    draw = random.Random(seed)
    processor = [draw.choice(PROCESSORS) for _ in range(draw.randint(1, 4))]
    config = settings(processor=processor, scale=1.5, shift=0.75, clip_low=-0.5, clip_high=1.25, norm_eps=0.0)
    speakers = [[agent for agent in draw.choices(["low", "high"], k=draw.randint(1, 6))] for _ in range(9)]
    rows = [episode(*((agent, step, "") for step, agent in enumerate(one))) for one in speakers]
    paid = [[draw.uniform(-2, 2) for _ in one] for one in speakers]
    found = score_turns(Reward(team_by_step=paid), rows, config).scores
    for name in AGENTS:
        turns = []
        for one, numbers in zip(speakers, paid, strict=True):
            own = [step for step, agent in enumerate(one) if agent == name]
            by_turn = [0.0] * len(own)
            for step, number in enumerate(numbers):
                if own:
                    by_turn[max([turn for turn, at in enumerate(own) if at <= step], default=0)] += number
            turns.append(by_turn)
        width = found[name].score.shape[1]
        assert width == max([1, *map(len, turns)])
        for row, expected in zip(found[name].score.tolist(), slowly(turns, processor, config), strict=True):
            assert row == pytest.approx(expected + [0.0] * (width - len(expected)), abs=1e-5)


def without_turns(numbers: Tensor, valid: Tensor, config: RewardConfig, moments: ScoreMoments) -> Tensor:
    """Reference of the processor chain over one number per row."""
    for step in config.processor:
        if step is Processor.scale:
            numbers = numbers * config.scale
        elif step is Processor.shift:
            numbers = numbers + config.shift
        elif step is Processor.clip:
            numbers = numbers.clamp(config.clip_low, config.clip_high)
        elif step is Processor.zscore:
            mean, variance = distributed.masked_moments(numbers, valid)
            numbers = numbers if variance.sqrt() <= config.norm_eps else (numbers - mean) / variance.sqrt()
        else:
            moments = moments.update(numbers, valid)
            if moments.std > config.norm_eps:
                numbers = ((numbers.double() - moments.mean) / moments.std).to(torch.float32)
    return numbers.where(valid, 0.0)


@pytest.mark.parametrize("seed", range(12))
def test_one_turn_is_bitwise_equal_to_no_turns(seed: int, settings: Make) -> None:
    draw = random.Random(seed)
    processor = [draw.choice(PROCESSORS) for _ in range(draw.randint(0, 4))]
    weights = {"team_weight": draw.uniform(-1, 2), "agent_weight": draw.uniform(-1, 2)}
    config = settings(processor=processor, scale=1.7, shift=0.3, clip_low=-0.5, clip_high=1.3, **weights)
    rows = [episode(("low", 0, ""), ("high", 0, "")) for _ in range(11)]
    team = [draw.choice([0.0, -0.0, 1.0, math.nan, draw.uniform(-3, 3)]) for _ in rows]
    own = {name: [draw.uniform(-3, 3) for _ in rows] for name in AGENTS}
    before = ScoreMoments(count=5, mean=0.123, squares=7.5)
    given = Reward(team=team, agent=own)
    found = score(lambda episodes: given, rows, config, dict.fromkeys(AGENTS, before))
    for name in AGENTS:
        total = torch.zeros(len(rows), dtype=torch.float64)
        for weight, numbers in ((config.team_weight, team), (config.agent_weight, own[name])):
            total += weight * torch.tensor(numbers, dtype=torch.float64)
        valid = torch.isfinite(total.float())
        expected = without_turns(total.float(), valid, config, before)
        assert torch.equal(found.scores[name].score[:, 0], expected)
        assert torch.equal(found.scores[name].raw[:, 0], total.float().where(valid, 0.0))
        assert torch.equal(found.scores[name].valid, valid)


def test_function_as_processor(settings: Make, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def halve(score):\n    return score / 2\n\n\ndef fail(score):\n    return 1 / (score - 2)\n\n\n"
        "def lose(score):\n    return float('nan')\n"
    )
    rows = [episode(("low", 0, ""), ("low", 1, ""), ("low", 2, "")), episode(("low", 0, ""))]
    reward = Reward(team_by_step=[[1, 2, 3], [2]])
    halve, fail, lose = (f"{tmp_path / 'mine.py'}:{name}" for name in ("halve", "fail", "lose"))
    found = score_turns(reward, rows, settings(processor=[halve, "shift"], shift=1.0), ["low"])
    assert found.scores["low"].score.tolist() == [[0.5, 1, 2.5], [2, 0, 0]]
    check_processor_functions([halve, "clip"])
    check_processor_functions([fail])  # the probe scores 0 and 1 pass
    with pytest.raises(RewardError, match=r"fail\]: .*mine.py:6: ZeroDivisionError"):
        score_turns(reward, rows, settings(processor=[fail]), ["low"])
    with pytest.raises(ConfigError, match=r"returns nan for the score 0"):
        check_processor_functions([lose])
