"""One rank of test_ranks.py: what it prints as JSON is looked at there."""

from __future__ import annotations

import json
import os
from typing import Any

import torch

from ippo_cli.config.errors import RewardError
from ippo_cli.config.schema import FunctionRewardConfig, Processor, RewardKind
from ippo_cli.engine import distributed
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.score import attempt, mixed, processed, stop_beyond_budget

RANK = int(os.environ["RANK"])


def settings(**changes: Any) -> FunctionRewardConfig:
    values = {"team_weight": 1.0, "agent_weight": 0.0, "processor": [Processor.zscore], "scale": 1.0, "shift": 0.0}
    values |= {
        "clip_low": -1.0,
        "clip_high": 1.0,
        "norm_eps": 1e-3,
        "failure_budget": 1.0,
        "reward_batch_rows": 0,
        "function": None,
        "whole_batch": False,
    }
    return FunctionRewardConfig(kind=RewardKind.function, **{**values, **changes})  # type: ignore[arg-type]


def own_parts(examples: Any, responses: Any) -> Reward:
    """Rank 0 reports one further number, rank 1 another."""
    return Reward(team=[1.0 + RANK] * len(examples), parts={f"of_{RANK}": [1.0] * len(examples)})


def fails_on_one(examples: Any, responses: Any) -> Reward:
    if RANK == 1:
        raise ValueError("only here")
    return Reward(team=[1.0] * len(examples), parts={"share": [1.0] * len(examples)})


def main() -> dict[str, Any]:
    rows, texts = [{}] * 3, {"low": ["", "", ""]}
    found: dict[str, Any] = {}
    given, _ = attempt(own_parts, rows, texts, settings())
    found["parts"] = list(given.parts)
    given, failure = attempt(fails_on_one, rows, texts, settings())
    found["parts after a failure"] = list(given.parts)
    found["valid"] = given.valid
    numbers = mixed(given, "low", settings(), 3)
    valid = torch.tensor(given.valid if given.valid is not None else [True] * 3)
    try:
        stop_beyond_budget(valid, failure, settings(failure_budget=0.4))
    except RewardError as error:
        found["told"] = str(error)
    stop_beyond_budget(valid, failure, settings(failure_budget=0.5))
    numbers = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 100.0]][RANK])
    keep = torch.tensor([[True, True, True], [True, True, False]][RANK])
    found["zscore"] = processed(numbers, keep, settings(), ScoreMoments()).tolist()
    moments = ScoreMoments(count=2, mean=1.5, squares=0.5)  # of 1 and 2, on whatever rank
    running = settings(processor=[Processor.running_zscore])
    found["running zscore"] = processed(numbers, keep, running, moments).tolist()
    return found


if __name__ == "__main__":
    distributed.init(device="cpu", timeout_s=60)
    result = main()
    distributed.shutdown()
    print(json.dumps(result))
