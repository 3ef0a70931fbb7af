"""A tiny model with a tokenizer of bytes, requests, and settings of engines."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from ippo_cli.config.schema import VllmConfig, VllmMode, WeightPath
from ippo_cli.rollout.engine import EngineModel, EngineRequest
from ippo_cli.rollout.sampling import Sampling


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Tokens 0 to 2 are special, the others are bytes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<pad>": 0, "<eos>": 1, "<bos>": 2} | {letter: 3 + k for k, letter in enumerate(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>", bos_token="<bos>")


def build_model(
    tokenizer: PreTrainedTokenizerFast, *, seed: int = 0, tied: bool = False, hidden_size: int = 64, num_layers: int = 2
) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 32,  # vLLM's attention on a CPU needs heads of at least 32
        num_key_value_heads=1,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        bos_token_id=2,
        eos_token_id=1,
        pad_token_id=0,
        architectures=["LlamaForCausalLM"],
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data.mul_(3.0)  # farther from the uniform distribution
    return model


def build_engine_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, **changes: Any) -> EngineModel:
    values = {"dtype": torch.float32, "name": "low", "max_length": 128, "usual_length": 64, "max_rows": 16}
    return EngineModel(config=model.config, tokenizer=tokenizer, **(values | changes))


def build_settings(**changes: Any) -> VllmConfig:
    values: dict[str, Any] = {
        "mode": VllmMode.server,
        "url": [],
        "ranks_per_server": None,
        "weight_path": WeightPath.auto,
        "listen_address": None,
        "kv_cache_gib": 0.0625,
        "verify_every": 1,
        "enforce_eager": None,
        "start_timeout_s": 300.0,
        "request_timeout_s": 60.0,
        "engine_args": {},
    }
    return VllmConfig(**(values | changes))


def build_request(
    key: int, prompt: list[int], *, seed: int = 0, stop_ids: tuple[int, ...] = (1,), **changes: Any
) -> EngineRequest:
    """A request; `changes` are settings of its sampling."""
    adapter = changes.pop("adapter", None)
    values = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "max_new_tokens": 16,
        "min_new_tokens": 0,
        "stop_strings": (),
        "greedy": False,
    }
    sampling = Sampling(**(values | changes))
    return EngineRequest(
        key=key,
        prompt=prompt,
        sampling=sampling,
        stop_ids=stop_ids,
        max_new_tokens=sampling.max_new_tokens,
        seed=seed,
        adapter=adapter,
    )
