"""`rollout.on_policy=exact` with vLLM: drafts have the model's noise, and the result is the model's own sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from test_in_process import DRAWS, TOKENIZER, random_model, requests

from ippo_cli.agents.agent import FrozenAgent
from ippo_cli.compose.load import load_config
from ippo_cli.models.actor import Policy
from ippo_cli.rollout.generator import HfGenerator, SamplingStream

pytestmark = [pytest.mark.needs_vllm, pytest.mark.slow]

ARGUMENTS = ["rollout=vllm", "rollout.max_new_tokens=24", "rollout.vllm.kv_cache_gib=0.05", "rollout.on_policy=exact"]
GREEDY = SamplingStream(seed=3, purpose="eval", greedy=True)


@pytest.fixture(scope="module", params=["colocate", "server"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def policies() -> dict[str, FrozenAgent]:
    return {"solo": FrozenAgent(name="solo", tokenizer=TOKENIZER, held_policy=Policy(random_model(0)).eval())}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 2.5},
        {"top_k": 5, "min_p": 0.02, "top_p": 0.9},
        {"repetition_penalty": 1.4},
        {"min_new_tokens": 6},
        {"stop_strings": ["a", "\x10"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("draws", [DRAWS, GREEDY], ids=["sampled", "greedy"])
def test_drafts_of_equal_weights_are_the_samples(
    policies: dict[str, FrozenAgent], mode: str, changes: dict[str, Any], draws: SamplingStream
) -> None:
    from ippo_cli.rollout.vllm.build import build_vllm_generator

    rollout: Any = replace(load_config([*ARGUMENTS, f"rollout.vllm.mode={mode}"]).rollout, **changes)
    generator = build_vllm_generator(policies, rollout, {"solo": rollout})
    generator.start_collection()
    found = generator.generate(("solo",), requests(16), draws)
    own = HfGenerator(policies, rollout, {"solo": rollout}).generate(("solo",), requests(16), draws)
    assert [one.ids.tolist() for one in found] == [one.ids.tolist() for one in own]
    for one, other in zip(found, own, strict=True):
        assert (one.text, one.finished) == (other.text, other.finished)
        torch.testing.assert_close(one.logprobs, other.logprobs, atol=1e-3, rtol=1e-3)
    changed = generator.take_metrics().get("solo/rollout/changed_drafts")
    assert (changed is None) != draws.is_training, "evaluations are not counted"
    assert changed is None or changed <= 1 / 16
    generator.close()
