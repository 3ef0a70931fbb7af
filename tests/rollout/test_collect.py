"""Asking agents: what is refused before a token is sampled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ippo_cli.agents.agent import FrozenAgent
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.load import load_config
from ippo_cli.models.actor import Policy
from ippo_cli.rollout.collect import collect
from ippo_cli.types import PromptBatch


def test_a_prompt_that_fills_the_context_is_an_error_and_no_empty_response(asked: Any, llama: Any) -> None:
    policy = FrozenAgent(name="low", tokenizer=asked.tokenizer, policy=Policy(llama).eval())
    ids = torch.full((2, 6), 5)
    mask = torch.tensor([[False] * 3 + [True] * 3, [True] * 6])
    batch = {"low": PromptBatch(ids=ids, mask=mask, examples=[{}, {}], index=torch.arange(2))}
    roomy = load_config(["rollout.context_limit=7", "rollout.max_new_tokens=4"]).rollout
    found = collect({"low": policy}, batch, roomy, seed=0, purpose="test")["low"]
    assert found.response_mask.sum(dim=1).tolist()[1] == 1
    full = load_config(["rollout.context_limit=6", "rollout.max_new_tokens=4"]).rollout
    with pytest.raises(ConfigError, match=r"agent low's prompt of 6 tokens, which leaves no room .* context of 6"):
        collect({"low": policy}, batch, full, seed=0, purpose="test")
