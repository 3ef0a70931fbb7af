"""Rules of `actor.model_args`: allowed arguments of `from_pretrained`, and replacements for others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.config.schema import ActorConfig, CheckpointWeights, Config, LoraActorConfig, TinyActorConfig
from ippo_cli.config.served_agents import local_agents

# Arguments of `from_pretrained` that other keys control, and their replacements.
LOADER_ARGS = {
    "pretrained_model_name_or_path": "use actor.model",
    "config": "set single values of the model's configuration",
    "dtype": "use actor.dtype",
    "torch_dtype": "use actor.dtype",
    "revision": "use actor.revision",
    "trust_remote_code": "use an architecture of transformers: code of a repository is never run",
    "device_map": "use launch.device and deepspeed",
    "max_memory": "use deepspeed=zero3_offload",
    "offload_folder": "use deepspeed=zero3_offload",
    "offload_state_dict": "use deepspeed=zero3_offload",
    "offload_buffers": "use deepspeed=zero3_offload",
    "low_cpu_mem_usage": "remove it: weights are always memory-mapped",
    "tp_plan": "use deepspeed=zero3",
    "tp_size": "use deepspeed=zero3",
    "device_mesh": "use deepspeed=zero3",
    "distributed_config": "use deepspeed=zero3",
    "quantization_config": "use actor.model_args.load_in_4bit=true or actor.model_args.load_in_8bit=true",
    "use_safetensors": "remove it: weights are always read from safetensors",
    "weights_only": "remove it: weights are always read from safetensors",
    "from_tf": "save the model as safetensors",
    "from_flax": "save the model as safetensors",
    "gguf_file": "save the model as safetensors",
    "variant": "save the weights of that variant as a separate model",
    "subfolder": "use the subfolder as actor.model",
    "state_dict": "use actor.model",
    "output_loading_info": "remove it",
    "ignore_mismatched_sizes": "remove it: a model with missing weights is an error",
    "return_unused_kwargs": "remove it",
    "key_mapping": "save the model with the parameter names of its architecture",
    "adapter_kwargs": "use actor.adapter",
    "adapter_name": "use actor.adapter",
    "cache_dir": "set HF_HOME in the environment",
    "force_download": "remove the model from the cache",
    "proxies": "set HTTPS_PROXY in the environment",
    "local_files_only": "set HF_HUB_OFFLINE=1 in the environment",
    "token": "set HF_TOKEN in the environment",
    "use_auth_token": "set HF_TOKEN in the environment",
    "use_cache": "remove it: generation uses a KV cache, training does not",
    "_attn_implementation": "use actor.model_args.attn_implementation",
    "use_flash_attention_2": "use actor.model_args.attn_implementation=flash_attention_2",
}
ATTENTION = "attn_implementation"
QUANTIZATION_BITS = {"load_in_4bit": 4, "load_in_8bit": 8}
BITSANDBYTES = ("bnb_4bit_quant_type", "bnb_4bit_use_double_quant", "bnb_4bit_compute_dtype", "llm_int8_threshold")
"""Other arguments of the quantisation."""


def quantized_bits(actor: ActorConfig) -> int | None:
    """Bits per weight of an adapter's frozen base; None without quantisation."""
    return next((bits for key, bits in QUANTIZATION_BITS.items() if actor.model_args.get(key)), None)


def quantization_args(actor: ActorConfig) -> dict[str, Any]:
    """Arguments of `BitsAndBytesConfig`; empty without quantisation."""
    if quantized_bits(actor) is None:
        return {}
    return {key: value for key, value in actor.model_args.items() if key in QUANTIZATION_BITS or key in BITSANDBYTES}


def unquantized_args(actor: ActorConfig) -> dict[str, Any]:
    """The other arguments: the implementation of attention, and values of the model's configuration."""
    return {
        key: value
        for key, value in actor.model_args.items()
        if key not in QUANTIZATION_BITS and key not in BITSANDBYTES
    }


def model_config_overrides(actor: ActorConfig) -> dict[str, Any]:
    """The arguments that override values of the model's configuration."""
    return {key: value for key, value in unquantized_args(actor).items() if key != ATTENTION}


def check_model_args(config: Config) -> Iterator[ConfigError]:
    """Yield an error for every argument that other keys control, and for unsupported quantisation."""
    seen: set[str] = set()
    for name, agent in local_agents(config).items():
        where = (
            "actor"
            if agent.actor.model_args == getattr(config.actor, "model_args", {})
            else f"task.agents.{name}.actor"
        )
        if where in seen:
            continue
        seen.add(where)
        for key, value in agent.actor.model_args.items():
            if key in LOADER_ARGS:
                yield ConfigError(f"{where}.model_args.{key}={value}", "is decided by other keys", LOADER_ARGS[key])
        yield from _check_quantization(config, agent.actor, where)


def _check_quantization(config: Config, actor: ActorConfig, where: str) -> Iterator[ConfigError]:
    args = actor.model_args
    quantization_keys = [key for key in (*QUANTIZATION_BITS, *BITSANDBYTES) if key in args]
    if not quantization_keys:
        return
    for key in QUANTIZATION_BITS:
        if key in args and not isinstance(args[key], bool):
            yield ConfigError(f"{where}.model_args.{key}={args[key]}", "must be true or false", "use true or false")
    setting = f"{where}.model_args.{quantization_keys[0]}={args[quantization_keys[0]]}"
    wanted = [key for key in QUANTIZATION_BITS if args.get(key)]
    if len(wanted) > 1:
        yield ConfigError(setting, "and load_in_8bit=true exclude each other", "set one of them")
    elif not wanted:
        if set(quantization_keys) & set(BITSANDBYTES):
            yield ConfigError(
                setting, "has no effect without quantisation", "add load_in_4bit=true or load_in_8bit=true"
            )
    elif not isinstance(actor, LoraActorConfig) or isinstance(actor, TinyActorConfig):
        yield ConfigError(
            setting,
            f"quantises weights, which cannot be trained, and actor={actor.kind.value} "
            + ("creates its base locally" if isinstance(actor, LoraActorConfig) else "trains all weights"),
            "use actor=lora, which trains an adapter on a quantised base",
        )
    elif config.checkpoint.weights is CheckpointWeights.full:
        yield ConfigError(setting, "has quantised weights, which cannot be merged", "use checkpoint.weights=adapter")


def check_quantization_package(config: Config) -> None:
    """Raise `PreflightError` if an agent's base is quantised and bitsandbytes is not installed."""
    for agent in local_agents(config).values():
        bits = quantized_bits(agent.actor)
        if bits is not None and find_spec("bitsandbytes") is None:
            setting = f"actor.model_args.load_in_{bits}bit=true"
            raise PreflightError(f"{setting}: needs the package bitsandbytes; pip install 'ippo-cli[quantization]'")


def check_model_config_overrides(values: Mapping[str, Any], unused: Mapping[str, Any], model: str, kind: str) -> None:
    """Raise `ConfigError` for arguments that neither `from_pretrained` nor the model's configuration knows."""
    if unused:
        key = sorted(unused)[0]
        raise ConfigError(
            f"actor.model_args.{key}={values[key]}",
            f"is neither an argument nor a value of the configuration of {model} ({kind})",
            f"use {ATTENTION}, {', '.join(QUANTIZATION_BITS)}, or a key of its config.json",
        )
