"""Values in bfloat16 models: the head computes in float32."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForSequenceClassification, LlamaConfig

from ippo_cli.formulas import gae
from ippo_cli.models.critic import ValueHead, ValueHeadConfig
from ippo_cli.models.reward_model import compute_scores_in_float32


@pytest.mark.parametrize("inner", [None, 16])
def test_value_head_computes_in_float32(inner: int | None) -> None:
    torch.manual_seed(0)
    head = ValueHead(ValueHeadConfig(64, inner)).bfloat16()
    torch.nn.init.normal_(head.out.weight, std=0.005)
    torch.nn.init.constant_(head.out.bias, 5.0)
    hidden = torch.randn(1, 40, 64).bfloat16()
    values = head(hidden)
    expected = ValueHead(ValueHeadConfig(64, inner))
    expected.load_state_dict(head.state_dict())
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, expected(hidden.float()), atol=1e-5, rtol=0)

    rewards, mask = torch.zeros_like(values), torch.ones_like(values, dtype=torch.bool)
    rewards[:, -1] = 5.0
    advantages, _ = gae(rewards, values, mask, gamma=1.0, gae_lambda=0.95)
    exact, _ = gae(rewards, expected(hidden.float()), mask, gamma=1.0, gae_lambda=0.95)
    assert (advantages - exact).std() < 1e-4 * exact.std()


def test_reward_model_scores_in_float32() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_labels=1, pad_token_id=0,
    )  # fmt: skip
    model = AutoModelForSequenceClassification.from_config(config).bfloat16().eval()
    hidden = model.model(input_ids=torch.arange(1, 9)[None]).last_hidden_state[:, -1]
    exact = hidden.float() @ model.score.weight.float().T
    compute_scores_in_float32(model)
    torch.testing.assert_close(model(input_ids=torch.arange(1, 9)[None]).logits, exact, atol=1e-6, rtol=0)
    assert type(model.model.layers[0].mlp.gate_proj) is torch.nn.Linear
