"""One rank of test_ranks.py, which checks the JSON that this script prints."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import torch
from spoken import episode, spoken_once

from ippo_cli.config.errors import RewardError
from ippo_cli.config.schema import (
    CreditAssignment,
    FunctionRewardConfig,
    MixRewardConfig,
    Processor,
    RewardConfig,
)
from ippo_cli.engine import distributed
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.counterfactual import gather_answers, recombined_baseline
from ippo_cli.rewards.environment import EnvironmentReward
from ippo_cli.rewards.mix import MixPart, MixReward
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.processors import apply_processors
from ippo_cli.rewards.score import (
    call_reward,
    check_failure_budget,
    combine_rewards_for_agent,
    compute_raw_scores,
    failed_rows,
    score,
)
from ippo_cli.types import Episode

AGENTS = ["low", "high"]
RANK = int(os.environ["RANK"])


def settings(**changes: Any) -> FunctionRewardConfig:
    values = {"team_weight": 1.0, "agent_weight": 0.0, "processor": [Processor.zscore], "scale": 1.0, "shift": 0.0}
    values |= {
        "turn_weight": 1.0,
        "credit_assignment": CreditAssignment.none,
        "measure_credit_every": 0,
        "credit_alternatives": None,
        "credit_turns": None,
        "clip_low": -1.0,
        "clip_high": 1.0,
        "norm_eps": 1e-3,
        "failure_budget": 1.0,
        "reward_batch_rows": 0,
        "function": None,
        "whole_batch": False,
        "per_sample": False,
        "concurrency": None,
        "process": False,
        "timeout_s": None,
    }
    return FunctionRewardConfig(kind="function", **{**values, **changes})  # type: ignore[arg-type]


def own_parts(episodes: Any) -> Reward:
    """A reward with a different part on each rank."""
    return Reward(team=[1.0 + RANK] * len(episodes), parts={f"of_{RANK}": [1.0] * len(episodes)})


def fails_on_one(episodes: Any) -> Reward:
    if RANK == 1:
        raise ValueError("only here")
    return Reward(team=[1.0] * len(episodes), parts={"share": [1.0] * len(episodes)})


def uneven() -> list[Episode]:
    """Episodes with 1, 2 and 0 turns of `low` on rank 0, with 3 and 3 turns and a failed one on rank 1.

    Step k has reward k + 1: the totals are 1, 3, 0, 6 and 6.
    """
    turns = [[1, 2, 0], [3, 3, 1]][RANK]
    failures = [None, None, ValueError("the world broke") if RANK == 1 else None]
    return [
        episode(
            *(("low", step, "") for step in range(count)),
            rewards=[{"low": step + 1.0} for step in range(count)],
            failure=failure,
        )
        for count, failure in zip(turns, failures, strict=True)
    ]


def main() -> dict[str, Any]:
    rows = spoken_once([{}] * 3, {"low": ["", "", ""]})
    found: dict[str, Any] = {}
    given, _ = call_reward(own_parts, rows, ["low"], settings())
    found["parts"] = list(given.parts)
    given, failure = call_reward(fails_on_one, rows, ["low"], settings())
    found["parts after a failure"] = list(given.parts)
    found["valid"] = given.valid
    failed = failed_rows(given, combine_rewards_for_agent(given, "low", rows, settings()))
    try:
        check_failure_budget(failed, failure, settings(failure_budget=0.4))
    except RewardError as error:
        found["error"] = str(error)
    found["within"] = check_failure_budget(failed, failure, settings(failure_budget=0.5))
    numbers = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 100.0]][RANK])
    keep = torch.tensor([[True, True, True], [True, True, False]][RANK])
    numbers, once = numbers[:, None], torch.ones(3, dtype=torch.long)
    found["zscore"] = apply_processors(numbers, once, keep, settings(), ScoreMoments())[0][:, 0].tolist()
    moments = ScoreMoments(count=2, mean=1.5, squares=0.5)  # of the scores 1 and 2
    running = settings(processor=[Processor.running_zscore])
    scaled, moments = apply_processors(numbers, once, keep, running, moments)
    found["running zscore"], found["observed"] = scaled[:, 0].tolist(), asdict(moments)
    by_turn = score(EnvironmentReward(["low"]), uneven(), settings(), {"low": ScoreMoments()})
    low = by_turn.scores["low"]
    found["by turn"], found["by turn valid"] = low.score.tolist(), low.valid.tolist()
    found["by turn failed"], found["by turn error"] = low.failed.tolist(), by_turn.failure
    found["counterfactual"] = divided_prompts()
    found["mix"] = mixed_of(lambda rows: [[1.0, 2.0, 3.0], [4.0, 5.0, math.nan]][RANK], rows)
    found["mix of one rank"] = mixed_of(lambda rows: [[1.0, 2.0, 3.0], [math.nan] * 3][RANK], rows)
    return found


def mixed_of(numbers: Callable[[Any], list[float]], rows: Sequence[Episode]) -> list[float]:
    """The scores of a mix of these numbers, normalized, and of 1 with weight 2; rows with NaN fail."""

    def part(episodes: Any) -> Reward:
        team = numbers(episodes) if len(episodes) == 3 else [math.nan] * len(episodes)
        return Reward(team=team, failures={row: ValueError("no") for row, one in enumerate(team) if math.isnan(one)})

    parts = {
        "a": MixPart(reward=part, weight=1.0, splittable=True),
        "b": MixPart(reward=ones, weight=2.0, splittable=True),
    }
    common = {leaf.name: getattr(settings(processor=[]), leaf.name) for leaf in fields(RewardConfig)}
    own = {"parts": dict.fromkeys(parts, settings()), "weights": {"b": 2.0}, "normalize": ["a"]}
    config = MixRewardConfig(**{**common, "kind": "mix"}, **own)  # type: ignore[arg-type]
    scored = score(MixReward(parts, ["low"], 1.0), rows, config, {"low": ScoreMoments()})
    return scored.scores["low"].score[:, 0].tolist()


def ones(episodes: Any) -> Reward:
    return Reward(team=[1.0] * len(episodes))


def divided_prompts() -> list[float]:
    """Credit of `low` for this rank's episodes of two prompts with three each: rank 0 has four, rank 1 two."""
    result = [("a", "x"), ("b", "y"), ("c", "x"), ("a", "y"), ("c", "x"), ("c", "y")]
    rows = {0: range(4), 1: range(4, 6)}[RANK]
    episodes = [replace(episode(*zip(AGENTS, (0, 0), result[row], strict=True)), index=row) for row in rows]
    answers = gather_answers(episodes, 3)
    baseline = recombined_baseline(worth, episodes, answers, 3, "low", dict.fromkeys(AGENTS, settings()), settings())
    own = compute_raw_scores(worth, episodes, dict.fromkeys(AGENTS, settings()), ["low"], settings())
    return (own.numbers["low"] - baseline.numbers)[:, 0].tolist()


def worth(episodes: Sequence[Episode]) -> Reward:
    """1 for `a` with `x`, 6 for `b` with `y`, else 0."""
    message = ["".join(turn.completion.text for turn in one.turns) for one in episodes]
    return Reward(team=[{"ax": 1.0, "by": 6.0}.get(text, 0.0) for text in message])


if __name__ == "__main__":
    distributed.init(device="cpu", timeout_s=60)
    result = main()
    distributed.shutdown()
    print(json.dumps(result))
