"""Prompts that leave no room for a response fail before sampling."""

from __future__ import annotations

from typing import Any

import torch

from ippo_cli.agents.agent import FrozenAgent
from ippo_cli.compose.load import load_config
from ippo_cli.models.actor import Policy
from ippo_cli.rollout.collect import collect
from ippo_cli.rollout.generator import HfGenerator, SamplingStream
from ippo_cli.tasks.conversation import PromptFormat
from ippo_cli.tasks.environment import EnvironmentPool
from ippo_cli.tasks.task import make_task_factory
from ippo_cli.types import Batch, Episode


def test_prompt_that_fills_context_fails(asked: Any, llama: Any) -> None:
    config = load_config(["task=sorting_solo", "task.agents.solo.template='{letters}'", "rollout.max_new_tokens=4"])
    policy = FrozenAgent(name="solo", tokenizer=asked.tokenizer, held_policy=Policy(llama).eval())
    batch = Batch(examples=[{"letters": "abc"}, {"letters": "abcdef"}], index=torch.arange(2))

    def played(context_limit: int) -> list[Episode]:
        config.rollout.context_limit = context_limit
        generator = HfGenerator({"solo": policy}, config.rollout, {"solo": config.rollout})
        formats = {"solo": PromptFormat("solo", asked.tokenizer, max_prompt_tokens=64)}
        environments = EnvironmentPool(make_task_factory(config.task))
        return collect(environments, formats, batch, generator, SamplingStream(seed=0, purpose="test"))

    assert len(played(7)[1].turns[0].completion.ids) == 1
    fits, long = played(6)
    assert (fits.failure, long.turns) == (None, [])
    assert "agent solo's prompt of 6 tokens, 'abcdef', which leaves no room" in str(long.failure)
