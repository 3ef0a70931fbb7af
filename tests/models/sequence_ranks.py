"""One rank of test_sequence_parallel.py: prints results as JSON, which the test checks."""

from __future__ import annotations

import json
from typing import Any

import torch
from architectures import tiny_config
from rows import everything, rollout
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from ippo_cli.config.errors import PreflightError
from ippo_cli.engine import distributed
from ippo_cli.models.actor import Policy
from ippo_cli.models.critic import ValueHead, ValueHeadConfig, make_value_model
from ippo_cli.models.layout import build_sequences
from ippo_cli.models.load import checkpoint_activations
from ippo_cli.models.packing import enable_packing
from ippo_cli.types import DetachedTurn

PROMPT = [*range(2, 22)]  # long enough to be shared
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "grouped heads": ("llama", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "eager": ("llama", {"attn_implementation": "eager"}),
    "learned positions": ("gpt2", {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}),
    "sliding window": ("gemma3", {"sliding_window": 4}),
    "latent attention": ("moonlight", {}),
    "checkpointed": ("qwen3", {"num_attention_heads": 4, "num_key_value_heads": 2}),
}
ROWS = [  # prompt, response, mask, detached turns
    (PROMPT, [8, 9, 10, 11, 12], [1, 1, 0, 0, 1], []),
    (PROMPT, [13, 14], [1, 1], []),
    (PROMPT, [15, 16, 17, 18], [1, 1, 1, 1], []),
    ([5], [6, 7, 8, 9, 10, 11, 12, 13], [1, 0, 1, 1, 0, 1, 0, 0], []),
    ([3, 4], [5, 6, 7, 8, 9, 10], [1, 1, 1, 1, 1, 1], [(2, [30, 31, 32, 33]), (5, [37])]),
]
BATCHES = {"several": ROWS, "long prompt": [ROWS[1]], "one token": [([20], [24], [1], [])]}


def gradients(module: nn.Module, loss: Tensor, *, summed: bool) -> dict[str, Tensor]:
    """Gradients of a loss; `summed`: over the ranks, as an engine does."""
    module.zero_grad()
    loss.backward()
    found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    return {name: distributed.all_sum(grad) if summed else grad.clone() for name, grad in found.items()}


def difference(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> float:
    """The largest difference, relative to the largest entry of each tensor."""
    assert actual.keys() == expected.keys()
    sizes = {name: max(float(expected[name].abs().max()), 1e-3) for name in expected}
    return max(float((actual[name] - expected[name]).abs().max()) / sizes[name] for name in expected)


def policy_results(policy: Policy, reference: Policy, critic: Any, rows: list[Any]) -> dict[str, float]:
    prompts, responses, masks, detached = zip(*rows, strict=True)
    turns = [[DetachedTurn(column=column, prompt=prompt) for column, prompt in own] for own in detached]
    made = rollout([*prompts], [*responses], [*masks], detached=turns)
    outputs: list[dict[str, Tensor]] = []
    for split in (False, True):
        sequences = build_sequences(made, everything(made), packed=True, share_prefixes=True, split=split)
        output = policy(sequences, temperature=0.7, chunk_tokens=3, with_entropy=True, reference=reference)
        weights = torch.linspace(0.5, 2.0, output.logprobs.numel()).view_as(output.logprobs)
        # Not linear in the log-probabilities: each rank's gradient depends on those of all ranks.
        loss = (weights * (output.logprobs.exp() + output.entropy + output.full_kl + output.values.square())).sum()
        loss = loss + output.logprobs.sum().square() + output.final_values.square().sum()
        found = gradients(policy, loss, summed=split)
        values = critic(sequences)
        own = gradients(critic, (values * values.detach().cos()).sum() + values.sum().square(), summed=split)
        found |= {f"critic {name}": grad for name, grad in own.items()}
        found |= {"logprobs": output.logprobs, "entropy": output.entropy, "kl": output.full_kl}
        found |= {"values": output.values, "final": output.final_values, "loss": loss, "critic": values}
        outputs.append({name: value.detach() for name, value in found.items()})
    whole, shared = outputs
    weights = {name for name in whole if "." in name}
    shard = sequences.shard
    assert shard is not None
    return {
        "gradients": difference(*({name: each[name] for name in weights} for each in (shared, whole))),
        "outputs": difference(*({name: each[name] for name in each.keys() - weights} for each in (shared, whole))),
        "tokens": float(shard.size),
        "of": float(shard.total),
    }


def make_lm(family: str, settings: dict[str, Any], seed: int) -> Any:
    torch.manual_seed(seed)
    settings = dict(settings)
    options = {"attn_implementation": settings.pop("attn_implementation", "sdpa")}
    lm = AutoModelForCausalLM.from_config(tiny_config(family, **settings), **options).eval()
    assert enable_packing(lm.base_model, split=True)
    return lm


def model_results(name: str) -> dict[str, Any]:
    family, settings = MODELS[name]
    torch.manual_seed(0)
    head = ValueHead(ValueHeadConfig(16))
    nn.init.normal_(head.out.weight)
    policy, reference = (Policy(make_lm(family, settings, seed), head if seed == 0 else None) for seed in (0, 1))
    critic = make_value_model(make_lm(family, settings, 2).base_model, None)
    nn.init.normal_(critic.value_head.out.weight)
    if name == "checkpointed":
        checkpoint_activations(policy.lm)
        policy.train()
    return {batch: policy_results(policy, reference, critic, rows) for batch, rows in BATCHES.items()}


def refusal(**settings: Any) -> str | None:
    """The error of a model whose heads the ranks cannot split."""
    lm = AutoModelForCausalLM.from_config(tiny_config("llama", **settings)).eval()
    try:
        enable_packing(lm.base_model, split=True)
    except PreflightError as error:
        return str(error)
    return None


if __name__ == "__main__":
    distributed.init(device="cpu", timeout_s=60, ranks_per_group=2)
    found: dict[str, Any] = {name: model_results(name) for name in MODELS}
    found["refusal"] = refusal(num_key_value_heads=1)
    distributed.shutdown()
    print(json.dumps(found))
