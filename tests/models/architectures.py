"""Tiny models of many families. Tests import this file by its path."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

SMALL = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
LOCAL_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
DEEPSEEK = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 8,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 8,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "head_dim": 4,
}
ATTENTION = "q_proj k_proj v_proj o_proj"
DENSE = f"{ATTENTION} gate_proj up_proj down_proj"
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {  # by name: model type, settings, maps that can have an adapter
    "deepseek_v3": (
        "deepseek_v3",
        {**DEEPSEEK, "q_lora_rank": 8},
        "q_a_proj q_b_proj kv_a_proj_with_mqa kv_b_proj o_proj",
    ),
    "moonlight": ("deepseek_v3", {**DEEPSEEK, "q_lora_rank": None}, "q_proj kv_a_proj_with_mqa kv_b_proj o_proj"),
    "qwen2_moe": ("qwen2_moe", {**EXPERTS, "shared_expert_intermediate_size": 16}, DENSE),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, "head_dim": 8}, ATTENTION),
    "mixtral": ("mixtral", LOCAL_EXPERTS, ATTENTION),
    "granitemoe": ("granitemoe", LOCAL_EXPERTS, ATTENTION),
    "olmoe": ("olmoe", {"num_experts": 4, "num_experts_per_tok": 2}, ATTENTION),
    "glm4_moe": ("glm4_moe", {**DEEPSEEK, "head_dim": 8}, ATTENTION),
    "phimoe": ("phimoe", LOCAL_EXPERTS, ATTENTION),
    "llama": ("llama", {}, DENSE),
    "qwen3": ("qwen3", {"head_dim": 8}, DENSE),
    "gemma3": ("gemma3_text", {"head_dim": 8}, DENSE),
    "phi3": ("phi3", {}, "o_proj qkv_proj gate_up_proj down_proj"),
    "gpt_neox": ("gpt_neox", {}, "query_key_value dense dense_h_to_4h dense_4h_to_h"),
    "gpt2": ("gpt2", {"n_embd": 16, "n_layer": 2, "n_head": 2}, "c_attn c_proj c_fc"),
    "falcon": ("falcon", {}, "query_key_value dense dense_h_to_4h dense_4h_to_h"),
    "mamba": ("mamba", {"state_size": 4, "time_step_rank": 4}, "in_proj x_proj"),
    "jamba": (
        "jamba",
        {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1, "mamba_dt_rank": 4, "mamba_d_state": 4},
        f"{DENSE} in_proj x_proj out_proj",
    ),
}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1}
STATEFUL: dict[str, tuple[str, dict[str, Any]]] = {  # layers that carry a state over tokens, without adapters
    "mamba2": ("mamba2", {"state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 1, "chunk_size": 8}),
    "bamba": ("bamba", {**MAMBA, "attn_layer_indices": [1]}),
    "falcon_h1": ("falcon_h1", {**MAMBA, "mamba_d_ssm": 32, "head_dim": 8}),
    "lfm2": ("lfm2", {"layer_types": ["conv", "full_attention"]}),
    "qwen3_next": (
        "qwen3_next",
        {
            **EXPERTS,
            "layer_types": ["linear_attention", "full_attention"],
            "shared_expert_intermediate_size": 8,
            "head_dim": 8,
            "linear_num_value_heads": 2,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
        },
    ),
}


def tiny_config(family: str, **changes: Any) -> Any:
    kind, settings = (FAMILIES.get(family) or STATEFUL[family])[:2]
    return AutoConfig.for_model(kind, **{**SMALL, **settings, **changes})


def tiny_model(family: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(tiny_config(family, **changes)).eval()
