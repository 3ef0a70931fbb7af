"""One rank of test_tensor_parallel.py: `splitting_ranks.py FOLDER`; prints results as JSON, which the test checks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from architectures import tiny_config
from rows import everything, rollout
from torch import Tensor
from transformers import AutoModelForCausalLM

from ippo_cli.engine import distributed
from ippo_cli.engine.tensor_parallel import model_plan, split_layers, tensor_parallel_config
from ippo_cli.engine.zero import Engine
from ippo_cli.engine.zero_config import zero_config
from ippo_cli.models.actor import Policy
from ippo_cli.models.layout import build_sequences

GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", GROUPED),
    "tied": ("llama", {"tie_word_embeddings": True}),
    "biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "norms of heads": ("qwen3", GROUPED),
}
MADE = rollout([[5, 6, 7], [5], [2, 3]], [[8, 9, 10, 11], [6, 7], [1, 2, 3]], [[1] * 4, [1] * 2, [1] * 3])


def make_policy(name: str) -> Policy:
    family, settings = FAMILIES[name]
    torch.manual_seed(0)
    lm = AutoModelForCausalLM.from_config(tiny_config(family, **settings)).eval()
    with torch.no_grad():
        for parameter in lm.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))  # biases and norms with different entries
    return Policy(lm)


def compute_loss(call: Any, rows: Tensor) -> Tensor:
    sequences = build_sequences(MADE, rows, packed=False)
    output = call(sequences, temperature=0.7, chunk_tokens=3, with_entropy=True)
    return (output.logprobs.exp() + output.entropy).sum() / len(MADE.texts)


def make_engine(policy: Policy, stage: int, dtype: str = "fp32") -> Engine[Policy]:
    config = zero_config(
        stage=stage,
        dtype=dtype,  # pyright: ignore[reportArgumentType]
        offload_optimizer=False,
        offload_params=False,
        reduce_bucket_size=5000,
        prefetch_bucket_size=0,
        persistence_threshold=0,
        max_live_parameters=0,
        max_grad_norm=0.1,  # clips: the norm counts every weight once
    )
    config["tensor_parallel"] = tensor_parallel_config(2, model_plan(policy.lm.base_model))
    settings = {"lr": 0.1, "weight_decay": 0.0, "betas": (0.9, 0.99), "eps": 1e-2}
    return Engine(policy, [{"params": list(policy.parameters()), **settings}], zero=config, device="cpu")


def update(engine: Engine[Policy]) -> float:
    """One step from two micro-batches."""
    for rows in everything(MADE).split(2):
        engine.backward(compute_loss(engine, rows))
    return engine.step().grad_norm


def expected_updates(name: str) -> tuple[float, list[dict[str, Tensor]]]:
    """Norm of the first gradients, and weights before the first and after each of two steps, of a plain model."""
    policy = make_policy(name)
    weights, norms = [{key: value.clone() for key, value in policy.state_dict().items()}], []
    optimizer = torch.optim.AdamW(policy.parameters(), lr=0.1, weight_decay=0.0, betas=(0.9, 0.99), eps=1e-2)
    for _ in range(2):
        optimizer.zero_grad()
        compute_loss(policy, everything(MADE)).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(policy.parameters(), 0.1)))
        optimizer.step()
        weights.append({key: value.clone() for key, value in policy.state_dict().items()})
    return norms[0], weights


def compare(found: dict[str, Tensor] | None, expected: dict[str, Tensor]) -> float:
    """The largest difference, on rank 0."""
    if found is None:
        return 0.0
    assert found.keys() == expected.keys()
    return max(float((found[name] - expected[name]).abs().max()) for name in expected)


def results(name: str, stage: int, folder: Path) -> dict[str, Any]:
    norm, (before, after, later) = expected_updates(name)
    engine = make_engine(make_policy(name), stage)
    layers = split_layers(engine.module)
    found: dict[str, Any] = {
        "layers": len(layers),
        "split": [list(layers[0].weight.shape), list(before["lm.model.layers.0.self_attn.q_proj.weight"].shape)],
        "loaded": compare(engine.full_state_dict(), before),
    }
    found["norm"] = abs(update(engine) - norm) / norm
    state = engine.full_state_dict()
    found["updated"], found["moved"] = (
        compare(state, after),
        max(float((after[n] - before[n]).abs().max()) for n in after),
    )
    own = everything(MADE)[distributed.rank() :]  # unequal rows on the ranks
    plain = Policy(make_policy(name).lm)
    plain.load_state_dict(after)
    with torch.no_grad():
        expected = compute_loss(plain, own)
    with engine.scoring():
        found["scored"] = float((compute_loss(engine, own) - expected).abs())
    with engine.inference() as module:
        found["generated"] = float((compute_loss(module, own) - expected).abs())
    engine.save(folder)
    update(engine)  # after weights were gathered and released
    further = engine.full_state_dict()
    found["further"] = compare(further, later)
    engine.destroy()
    resumed = make_engine(make_policy(name), stage)
    resumed.load(folder)
    found["restored"] = compare(resumed.full_state_dict(), after if state is None else state)
    update(resumed)
    found["resumed"] = 0.0 if further is None else compare(resumed.full_state_dict(), further)
    if further is None:
        resumed.full_state_dict()
    resumed.destroy()
    return found


if __name__ == "__main__":
    distributed.init(device="cpu", timeout_s=60, ranks_per_group=2)
    root = Path(sys.argv[1])
    cases = [("llama", 1), ("llama", 2), *((name, 1) for name in FAMILIES if name != "llama")]
    found = {f"{name} {stage}": results(name, stage, root / f"{name}{stage}") for name, stage in cases}
    distributed.shutdown()
    print(json.dumps(found))
