"""Arguments of vLLM's engines and requests, for both modes. Does not import vllm at the top."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig

from ippo_cli.config.schema import VllmConfig
from ippo_cli.engine.host_memory import host_memory
from ippo_cli.rollout.engine import EngineModel, EngineRequest, TokenNoiseKey
from ippo_cli.rollout.sampling import Sampling
from ippo_cli.rollout.vllm.serve import EXTENSION, PROCESSOR

BLOCK = 32
"""Tokens of a block of the key-value cache on a CPU: with larger ones short prompts are not cached."""
PROMPT_TOKENS = 8192
"""Tokens of one forward on a CPU, if no prompt is longer."""
FREE_SHARE = 0.25
"""Share of the free memory that a key-value cache may take without `kv_cache_gib`."""
LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values of `max_lora_rank` that vLLM accepts."""
NOISE_KEY = "ippo_noise"
FILTERS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def write_model_folder(model: EngineModel, folder: Path) -> None:
    """Write the configuration and the tokenizer of a model; its weights are transferred later.

    Not with `save_pretrained` of the model: in a process group it writes on rank 0 only.
    """
    config = model.config.to_dict()
    config["torch_dtype"] = config["dtype"] = DTYPES[model.dtype]
    (folder / "config.json").write_text(json.dumps(config, default=str))
    model.tokenizer.save_pretrained(folder)


def engine_arguments(model: EngineModel, settings: VllmConfig, device: torch.device, folder: Path) -> dict[str, Any]:
    """Keyword arguments of `EngineArgs`, by name."""
    on_cpu = device.type == "cpu"
    arguments: dict[str, Any] = {
        "model": str(folder),
        "dtype": DTYPES[model.dtype],
        "load_format": "dummy",
        "max_model_len": model.max_length,
        "max_num_seqs": model.max_rows,
        "kv_cache_memory_bytes": cache_bytes(model, settings, device),
        "enforce_eager": on_cpu if settings.enforce_eager is None else settings.enforce_eager,
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",  # no sampling settings of the model's own
        "disable_log_stats": True,
        "enable_prefix_caching": True,
        "worker_extension_cls": EXTENSION,
        "seed": 0,
    }
    if on_cpu:
        arguments["block_size"] = BLOCK
        # The generator of a request with a seed cannot be set back on a CPU, which a prompt read in parts needs.
        arguments["enable_chunked_prefill"] = False
        arguments["max_num_batched_tokens"] = max(model.max_length, model.max_rows, PROMPT_TOKENS)
    if model.has_noise:
        arguments["logits_processors"] = [PROCESSOR]
    if model.max_adapters:
        arguments |= {
            "enable_lora": True,
            "max_loras": model.max_adapters,
            "max_lora_rank": next(rank for rank in LORA_RANKS if rank >= model.max_adapter_rank),
        }
    return arguments | dict(settings.engine_args)


def cache_bytes(model: EngineModel, settings: VllmConfig, device: torch.device) -> int:
    """Bytes of an engine's key-value cache: as configured, or what all rows of the usual length need, within a share of
    the free memory; at least one row of full length.
    """
    if settings.kv_cache_gib is not None:
        return int(settings.kv_cache_gib * 2**30)
    free = _free_bytes(device)
    per_token = cache_bytes_per_token(model.config, model.dtype)
    longest, usual = (math.ceil(tokens / BLOCK + 1) * BLOCK for tokens in (model.max_length, model.usual_length))
    return int(per_token * max(longest, min(usual * model.max_rows, FREE_SHARE * free / per_token)))


def _free_bytes(device: torch.device) -> int:
    """Free bytes of a device; all bytes of another GPU than this process's: asking for free ones would take some."""
    if device.type != "cuda":
        return host_memory().available
    if device.index not in (None, torch.cuda.current_device()):
        return torch.cuda.get_device_properties(device).total_memory
    return torch.cuda.mem_get_info(device)[0]


def cache_bytes_per_token(config: PretrainedConfig, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of one token in all layers."""
    text = config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * text.num_hidden_layers * heads * width * dtype.itemsize


def make_params(request: EngineRequest) -> Any:
    """vLLM's `SamplingParams` of a request."""
    from vllm import SamplingParams  # pyright: ignore[reportMissingImports]
    from vllm.sampling_params import RequestOutputKind  # pyright: ignore[reportMissingImports]

    return SamplingParams(**request_parameters(request), output_kind=RequestOutputKind.FINAL_ONLY)


def request_parameters(request: EngineRequest) -> dict[str, Any]:
    """The sampling parameters of a request, as vLLM and its server name them."""
    sampling = request.sampling
    parameters = {
        "max_tokens": request.max_new_tokens,
        "min_tokens": min(sampling.min_new_tokens, request.max_new_tokens),
        "stop_token_ids": list(request.stop_ids),
        "ignore_eos": True,  # the stop tokens above are all that end a response
        "stop": list(sampling.stop_strings),
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,  # special tokens may be part of a stop string
        "detokenize": bool(sampling.stop_strings),
    }
    if request.noise is not None:  # the processor draws the token, and vLLM's log-probabilities would be of that alone
        filters = {name: getattr(sampling, name) for name in FILTERS}
        return parameters | {"temperature": 0.0, "extra_args": {NOISE_KEY: [*request.noise, filters]}}
    return parameters | {
        "temperature": 0.0 if sampling.greedy else sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": sampling.repetition_penalty,
        "seed": request.seed,
        "logprobs": 0,  # of the sampled token
    }


def read_noise(extra_args: Mapping[str, Any] | None) -> tuple[TokenNoiseKey, Sampling] | None:
    """The noise of a request's tokens and the filters to draw them with; None for requests without noise."""
    if not extra_args or NOISE_KEY not in extra_args:
        return None
    key, position, filters = extra_args[NOISE_KEY]
    return TokenNoiseKey(key, position), Sampling(max_new_tokens=1, **filters)
