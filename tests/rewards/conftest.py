"""Buffers of given texts, and reward settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from ippo_cli.config.schema import FunctionRewardConfig, RewardKind
from ippo_cli.types import Example, PromptBatch, Rollout

Buffer = tuple[dict[str, PromptBatch], dict[str, Rollout]]


@pytest.fixture(scope="session")
def settings() -> Callable[..., FunctionRewardConfig]:
    """Reward settings: the team's numbers as they are, with some values changed."""
    plain = FunctionRewardConfig(
        kind=RewardKind.function,
        team_weight=1.0,
        agent_weight=0.0,
        processor=[],
        scale=1.0,
        shift=0.0,
        clip_low=-10.0,
        clip_high=10.0,
        norm_eps=1e-3,
        failure_budget=1.0,
        reward_batch_rows=0,
        function=None,
        whole_batch=False,
    )
    return lambda **changes: replace(plain, **changes)


@pytest.fixture(scope="session")
def buffer() -> Callable[..., Buffer]:
    """Prompts and rollouts in which each agent said the given texts."""

    def make(examples: Sequence[Example], texts: Mapping[str, Sequence[str]]) -> Buffer:
        rows = len(examples)
        one: dict[str, Any] = {"prompt_ids": torch.ones(rows, 1, dtype=torch.long)}
        one |= {"prompt_mask": torch.ones(rows, 1, dtype=torch.bool), "response_ids": torch.ones(rows, 1).long()}
        one |= {"response_mask": torch.ones(rows, 1, dtype=torch.bool), "turn": torch.zeros(rows, 1).long()}
        one |= {"logprobs": torch.zeros(rows, 1), "behavior_logprobs": torch.zeros(rows, 1)}
        one |= {"finished": torch.ones(rows, dtype=torch.bool), "length": torch.ones(rows).long()}
        asked = PromptBatch(
            ids=one["prompt_ids"], mask=one["prompt_mask"], examples=list(examples), index=torch.arange(rows)
        )
        return dict.fromkeys(texts, asked), {name: Rollout(**one, texts=list(said)) for name, said in texts.items()}

    return make
