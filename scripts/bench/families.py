"""Trains tiny random models of several families for one iteration with rollout=hf and rollout=vllm; prints a table.

    .venv/bin/python scripts/bench/families.py                          # rollout=hf
    .venv-vllm/bin/python scripts/bench/families.py --rollout hf vllm   # both
    ... --only llama qwen3_moe --json families.json

Each training runs in a separate process. A family is `packed` or `padded`, as its training passes read rows, or
`refused` with the reason. `difference` is the largest difference between log-probabilities in packed and in padded
rows, `gap` the mean one between the sampler's and the trainer's; the model is in float32.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ippo_cli.config.schema import Dtype
from ippo_cli.models.actor import Policy, load_causal_lm
from ippo_cli.models.layout import build_sequences
from ippo_cli.models.load import backbone_of
from ippo_cli.models.packing import enable_packing
from ippo_cli.models.tiny import byte_tokenizer
from ippo_cli.types import Rollout

LENGTHS = ((3, 60), (40, 20), (150, 9), (17, 233))  # tokens of prompts and responses

BASE: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "initializer_range": 0.1,  # farther from the uniform distribution
}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
LATENT: dict[str, Any] = {  # multi-head latent attention
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
STATE: dict[str, Any] = {
    "state_size": 16,
    "num_heads": 16,
    "n_groups": 1,
    "expand": 2,
    "head_dim": 16,
    "conv_kernel": 4,
    "chunk_size": 32,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {  # model_type, and what differs from BASE
    "Llama": ("llama", {}),
    "Mistral": ("mistral", {"sliding_window": 64}),
    "Qwen2": ("qwen2", {}),
    "Qwen3": ("qwen3", {}),
    "Qwen2-MoE": ("qwen2_moe", EXPERTS | {"shared_expert_intermediate_size": 64}),
    "Qwen3-MoE": ("qwen3_moe", EXPERTS),
    "Gemma 2": ("gemma2", {"sliding_window": 64, "query_pre_attn_scalar": 32, "tie_word_embeddings": True}),
    "Gemma 3": ("gemma3_text", {"sliding_window": 64, "query_pre_attn_scalar": 32, "tie_word_embeddings": True}),
    "Phi": ("phi", {"num_key_value_heads": 4, "head_dim": None}),
    "Phi-3": ("phi3", {"head_dim": None}),
    "DeepSeek V2": ("deepseek_v2", LATENT | {"head_dim": None}),
    "DeepSeek V3, Moonlight": ("deepseek_v3", LATENT | {"head_dim": None}),
    "GPT-OSS": ("gpt_oss", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 64}),
    "Mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "OLMo 2": ("olmo2", {"head_dim": None}),
    "Granite": ("granite", {"head_dim": None}),
    "Mamba": ("mamba", {"state_size": 16, "time_step_rank": 4}),
    "Mamba 2": ("mamba2", STATE),
    "Falcon H1": (
        "falcon_h1",
        {"mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1},
    ),
    "Bamba": (
        "bamba",
        {"mamba_n_heads": 16, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "attn_layer_indices": [1]},
    ),
    "LFM2": ("lfm2", {"layer_types": ["conv", "full_attention"], "head_dim": None}),
}


def write_model(family: str, folder: Path) -> None:
    """A folder with a random model of a family and a byte tokenizer."""
    kind, changes = FAMILIES[family]
    tokenizer = byte_tokenizer()
    settings = {key: value for key, value in (BASE | changes).items() if value is not None or key == "bos_token_id"}
    config = AutoConfig.for_model(kind, vocab_size=len(tokenizer), **settings)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@torch.no_grad()
def compare_packing(folder: Path) -> float | None:
    """The largest difference between log-probabilities in packed and in padded rows; None if rows are not packed."""
    lm = load_causal_lm(str(folder), None, Dtype.fp32)
    if not enable_packing(backbone_of(lm)):
        return None
    policy, rollout = Policy(lm).eval(), random_rollout(backbone_of(lm).config.get_text_config().vocab_size)
    found = []
    for packed in (True, False):
        sequences = build_sequences(rollout, torch.arange(len(LENGTHS)), packed=packed, share_prefixes=packed)
        found.append(policy(sequences, temperature=1.0, chunk_tokens=1000).logprobs)
    return float((found[0] - found[1]).abs().max())


def random_rollout(vocabulary: int) -> Rollout:
    """Rows with random tokens, longer than sliding windows."""
    prompts, responses = (torch.tensor(lengths) for lengths in zip(*LENGTHS, strict=True))
    prompt_ids, response_ids = (
        torch.randint(3, vocabulary, (len(LENGTHS), int(lengths.max()))) for lengths in (prompts, responses)
    )
    prompt_mask = torch.arange(prompt_ids.shape[1]).flip(0) < prompts[:, None]
    response_mask = torch.arange(response_ids.shape[1]) < responses[:, None]
    return Rollout(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        response_ids=response_ids,
        response_mask=response_mask,
        turn=torch.where(response_mask, 0, -1),
        length=responses,
        logprobs=torch.zeros(response_ids.shape),
        behavior_logprobs=torch.zeros(response_ids.shape),
        finished=torch.ones(len(LENGTHS), dtype=torch.bool),
        texts=[""] * len(LENGTHS),
        detached=[],
    )


def train(folder: Path, output: Path, rollout: str, seconds: float) -> dict[str, Any]:
    """The result of one training iteration."""
    command = [sys.executable, "-m", "ippo_cli", "train", "actor=full", f"actor.model={folder}", "actor.dtype=fp32"]
    command += ["task=arithmetic", "reward=number", f"rollout={rollout}", "num_iterations=1", "evaluation.every=0"]
    command += ["rollout.buffer_size=16", "rollout.max_new_tokens=16", "algorithm.mini_batch_size=16", "tracker=none"]
    command += ["rollout.max_prompt_tokens=300", "algorithm=ppo", f"output_dir={output}"]
    command += [
        "rollout.recompute_logprobs=true",
        "actor.warmup_iterations=0",
        "evaluation.size=4",
        "evaluation.greedy=false",
    ]
    if rollout == "vllm":
        command += ["rollout.vllm.kv_cache_gib=0.1", "rollout.max_sampler_gap=null"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return {"result": "failed", "reason": f"no end within {seconds:.0f} s"}
    text = result.stdout + result.stderr
    if result.returncode:
        lines = text.strip().splitlines()
        starts = [place for place, line in enumerate(lines) if re.match(r"ippo: |[\w.]+(Error|Exception): ", line)]
        first = starts[0] if starts else -1
        errors = lines[first : first + 4]
        return {"result": "refused" if result.returncode in (2, 3, 16) else "failed", "reason": " ".join(errors)[:300]}
    row = json.loads(next(output.rglob("metrics.jsonl")).read_text().splitlines()[-1])
    gaps = [value for key, value in row.items() if key.endswith("/rollout/logprob_diff/sampler")]
    grads = [value for key, value in row.items() if key.endswith("policy/grad_norm")]
    return {
        "result": "trained",
        "gap": max(gaps, default=math.nan),
        "grad_norm": max(grads, default=math.nan),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollout", nargs="+", default=["hf"], choices=["hf", "vllm"])
    parser.add_argument("--only", nargs="+", choices=[kind for kind, _ in FAMILIES.values()])
    parser.add_argument("--seconds", type=float, default=300.0, help="limit of one training")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    header = ["family", "rows", *(f"rollout={rollout}" for rollout in arguments.rollout)]
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header), flush=True)
    for family, (kind, _) in FAMILIES.items():
        if arguments.only and kind not in arguments.only:
            continue
        row = measure_family(family, arguments.rollout, arguments.seconds)
        rows.append({"family": family, **row})
        cells = [describe(row[rollout]) for rollout in arguments.rollout]
        print("| " + " | ".join([family, row["rows"], *cells]) + " |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


def measure_family(family: str, rollouts: list[str], seconds: float) -> dict[str, Any]:
    """How a family reads rows, and the results of its trainings."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        try:
            write_model(family, model)
        except Exception as error:  # the installed transformers has no such family
            reason = " ".join(str(error).split())[:200]
            return {"rows": "-"} | {rollout: {"result": "no model", "reason": reason} for rollout in rollouts}
        difference = compare_packing(model)
        rows = "padded" if difference is None else f"packed, difference {difference:.1e}"
        trained = {rollout: train(model, Path(folder) / rollout, rollout, seconds) for rollout in rollouts}
    return {"rows": rows, **trained}


def describe(found: dict[str, Any]) -> str:
    """A cell of the table."""
    if "reason" in found:
        return f"{found['result']}: {found['reason']}"
    return f"{found['result']}, gap {found['gap']:.1e}"


if __name__ == "__main__":
    main()
