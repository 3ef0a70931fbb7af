"""The router loss of mixtures of experts is that of the states before action tokens, in all layouts."""

from __future__ import annotations

import pytest
import torch
from architectures import tiny_model
from rows import everything, rollout
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from ippo_cli.models.actor import Policy
from ippo_cli.models.layout import build_sequences
from ippo_cli.models.load import checkpoint_activations
from ippo_cli.models.packing import enable_packing

ROWS = rollout([[5, 6, 7], [8]], [[10, 11, 12, 13], [15, 16]], [[1, 1, 0, 1], [1, 1]])
STATES = [(0, (2, 3, 5)), (1, (0, 1))]  # places before action tokens, by row


def router_loss(policy: Policy, *, packed: bool) -> torch.Tensor:
    sequences = build_sequences(ROWS, everything(ROWS), packed=packed)
    loss = policy(sequences, temperature=1.0, chunk_tokens=100, with_router_loss=True).router_loss
    assert loss is not None
    return loss


@pytest.mark.parametrize("family", ["qwen2_moe", "qwen3_moe", "mixtral", "granitemoe", "olmoe", "phimoe", "jamba"])
def test_router_loss_of_states_before_action_tokens(family: str) -> None:
    lm = tiny_model(family, initializer_range=0.3)
    lm.config.num_experts_per_tok = 1 if family == "jamba" else 2
    policy, sequences = Policy(lm).eval(), build_sequences(ROWS, everything(ROWS), packed=False)
    with torch.no_grad():
        found = lm.base_model(input_ids=sequences.input_ids, output_router_logits=True).router_logits
        width = sequences.input_ids.shape[1]
        places = [row * width + place for row, own in STATES for place in own]
        chosen = tuple(layer.flatten(0, -2)[places] for layer in found)
        expected = load_balancing_loss_func(chosen, chosen[0].shape[-1], lm.config.num_experts_per_tok)
        torch.testing.assert_close(router_loss(policy, packed=False), expected)
        if enable_packing(lm.base_model):
            torch.testing.assert_close(router_loss(policy, packed=True), expected)


def test_gradient_reaches_routers_with_recomputed_activations() -> None:
    gradients = []
    for recomputes in (False, True):
        lm = tiny_model("mixtral", initializer_range=0.3)
        if recomputes:
            checkpoint_activations(lm)
        policy = Policy(lm).train()
        router_loss(policy, packed=False).backward()
        gradients.append({name: each.grad for name, each in lm.named_parameters() if each.grad is not None})
    assert any("gate" in name and float(grad.abs().max()) > 1e-3 for name, grad in gradients[0].items())
    torch.testing.assert_close(gradients[0], gradients[1])
