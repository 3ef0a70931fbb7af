"""The bound on the difference between the sampler's and the trainer's log-probabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import EngineError
from ippo_cli.training.sampler_gap import check_sampler_gap, sampler_gap
from ippo_cli.types import Rollout


@pytest.fixture
def config() -> Any:
    return load_config(["rollout=vllm", "rollout.max_sampler_gap=0.5"])


def rollout(logprobs: list[list[float]], mask: list[list[int]]) -> Rollout:
    values, kept = torch.tensor(logprobs), torch.tensor(mask, dtype=torch.bool)
    rows, width = values.shape
    return Rollout(
        prompt_ids=torch.ones(rows, 1, dtype=torch.long),
        prompt_mask=torch.ones(rows, 1, dtype=torch.bool),
        response_ids=torch.ones(rows, width, dtype=torch.long),
        response_mask=kept,
        turn=torch.where(kept, 0, -1),
        length=kept.sum(dim=1),
        logprobs=values,
        behavior_logprobs=values,
        finished=torch.ones(rows, dtype=torch.bool),
        texts=[""] * rows,
    )


SAMPLED = rollout([[-1.0, -2.0], [-1.0, 0.0]], [[1, 1], [1, 0]])


def test_mean_over_sampled_tokens() -> None:
    rescored = replace(SAMPLED, logprobs=torch.tensor([[-1.5, -2.0], [-2.0, -9.0]]))
    assert sampler_gap(SAMPLED, rescored) == pytest.approx(0.5)
    nothing = rollout([[0.0]], [[0]])
    assert sampler_gap(nothing, nothing) == 0.0


def test_gap_above_the_bound_names_the_agent(config: Any) -> None:
    wrong = replace(SAMPLED, logprobs=SAMPLED.logprobs - 0.6)
    right = {"low": SAMPLED, "high": SAMPLED}
    check_sampler_gap(config, right, right, right)
    with pytest.raises(EngineError, match=r"max_sampler_gap=0.5: the log-probabilities of high .* differ by 0.6 per"):
        check_sampler_gap(config, right, right, right | {"high": wrong})


@pytest.mark.parametrize("override", ["rollout.max_sampler_gap=null", "rollout.top_k=3"])
def test_gap_is_not_checked_without_a_bound_or_with_filters(override: str) -> None:
    config = load_config(["rollout=vllm", override])
    wrong = replace(SAMPLED, logprobs=SAMPLED.logprobs - 0.6)
    check_sampler_gap(config, ["low"], {"low": SAMPLED}, {"low": wrong})
