"""Checks of `rollout=vllm` and `rollout=openai_server`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from math import prod
from urllib.parse import urlsplit

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.model_args import quantization_args
from ippo_cli.config.schema import (
    AgentConfig,
    AlgorithmConfig,
    Config,
    LoraActorConfig,
    Mode,
    OpenAIServerRolloutConfig,
    RatioBase,
    SamplingConfig,
    SamplingMethod,
    VllmConfig,
    VllmMode,
    VllmRolloutConfig,
    Zero3Gather,
)
from ippo_cli.config.served_agents import local_agents
from ippo_cli.config.text import join_names

OWN_ARGUMENTS = {
    "dtype": "actor.dtype",
    "enable_lora": "actor=lora",
    "enforce_eager": "rollout.vllm.enforce_eager",
    "generation_config": "the keys of rollout",
    "gpu_memory_utilization": "rollout.vllm.kv_cache_gib",
    "kv_cache_memory_bytes": "rollout.vllm.kv_cache_gib",
    "load_format": "actor.model",
    "logits_processors": "nothing: rollout.on_policy=exact sets them",
    "logprobs_mode": "nothing: log-probabilities of the sampling distribution are needed",
    "max_lora_rank": "actor.rank",
    "max_loras": "team=shared_base",
    "max_model_len": "rollout.context_limit",
    "max_num_seqs": "rollout.decode_batch_size",
    "model": "actor.model",
    "tokenizer": "actor.tokenizer",
    "worker_extension_cls": "nothing: weights are transferred by it",
}
"""Arguments of `EngineArgs` that other keys decide."""


def devices_per_server(settings: VllmConfig) -> int:
    """CUDA devices that each engine uses."""
    parts = (settings.engine_args.get(name) or 1 for name in ("tensor_parallel_size", "pipeline_parallel_size"))
    return prod(int(part) for part in parts)


def device_slots(devices: Sequence[int] | None, settings: VllmConfig) -> list[tuple[int, ...]] | None:
    """The devices of servers in parts for one server each; None if no devices are given to servers.

    Raises `ConfigError` if the parts are not whole.
    """
    if devices is None:
        return None
    size = devices_per_server(settings)
    if not devices or len(devices) % size:
        raise ConfigError(
            f"rollout.vllm.engine_args={settings.engine_args}",
            f"gives each server {size} devices, and {len(devices)} are given to servers",
            f"give them a multiple of {size}, or change tensor_parallel_size",
        )
    return [tuple(devices[start : start + size]) for start in range(0, len(devices), size)]


def check_vllm_rollout(config: Config, world_size: int) -> Iterator[ConfigError]:
    """Settings that vLLM does not support, or gives another meaning."""
    rollout = config.rollout
    if not isinstance(rollout, VllmRolloutConfig):
        return
    settings = rollout.vllm
    if config.mode is not Mode.plan and not settings.url and find_spec("vllm") is None:
        yield ConfigError(
            "rollout=vllm",
            "needs the package vllm, which is not installed",
            "run pip install 'ippo-cli[vllm]' (on a CPU: scripts/vllm_environment.sh), or use rollout=hf",
        )
    for key in sorted(OWN_ARGUMENTS.keys() & settings.engine_args.keys()):
        yield ConfigError(f"rollout.vllm.engine_args.{key}", "is decided by another key", f"use {OWN_ARGUMENTS[key]}")
    yield from _check_servers(settings, world_size)
    if rollout.zero3_gather is Zero3Gather.layer:
        yield ConfigError(
            "rollout.zero3_gather=layer",
            "has no effect with rollout=vllm, which gathers one tensor at a time",
            "use all",
        )
    if rollout.sampling is not SamplingMethod.gumbel:
        yield ConfigError(
            f"rollout.sampling={rollout.sampling.value}",
            "has no effect with rollout=vllm, which has its own random numbers",
            "use gumbel, the default",
        )
    for name, agent in local_agents(config).items():
        yield from _check_agent(f"task.agents.{name}: ", name, agent, rollout, config.algorithm)
    if rollout.max_sampler_gap is not None and not (rollout.recompute_logprobs or rollout.verifies_drafts):
        yield ConfigError(
            f"rollout.max_sampler_gap={rollout.max_sampler_gap}",
            "needs the trainer's log-probabilities",
            "use rollout.recompute_logprobs=true, or null",
        )


def _check_servers(settings: VllmConfig, world_size: int) -> Iterator[ConfigError]:
    """Keys of `rollout.vllm.mode=server`."""
    if settings.url and settings.mode is not VllmMode.server:
        yield ConfigError(
            "rollout.vllm.url", "names servers, which mode=colocate does not use", "set rollout.vllm.mode=server"
        )
    if settings.mode is not VllmMode.server:
        values = {"ranks_per_server": settings.ranks_per_server, "listen_address": settings.listen_address}
        for key in (key for key, value in values.items() if value is not None):
            yield ConfigError(
                f"rollout.vllm.{key}={values[key]}",
                "has an effect on servers, which mode=colocate does not have",
                "set rollout.vllm.mode=server, or null",
            )
    elif settings.ranks_per_server is not None and settings.ranks_per_server > world_size:
        yield ConfigError(
            f"rollout.vllm.ranks_per_server={settings.ranks_per_server}",
            f"is more than the {world_size} ranks of this run",
            f"use 1 to {world_size}, or null",
        )
    if settings.listen_address is not None and not _is_address(settings.listen_address):
        yield ConfigError(
            f"rollout.vllm.listen_address={settings.listen_address}",
            "is not an address of this machine",
            "use HOST or HOST:PORT, such as 10.0.0.5 or 10.0.0.5:29600",
        )


def _check_agent(
    where: str, name: str, agent: AgentConfig, rollout: VllmRolloutConfig, algorithm: AlgorithmConfig
) -> Iterator[ConfigError]:
    """An agent's sampling and model."""
    sampling, actor = agent.rollout, agent.actor
    if not rollout.verifies_drafts:  # else the engine draws tokens as rollout=hf does
        yield from _check_sampling(where, name, sampling, rollout, algorithm)
    if quantization_args(actor):
        yield ConfigError(
            f"{where}actor.model_args",
            "quantises the base, and vLLM would quantise it differently",
            "use rollout=hf",
        )
    if isinstance(actor, LoraActorConfig) and actor.use_dora:
        yield ConfigError(f"{where}actor.use_dora=true", "is not supported by vLLM", "use false, or rollout=hf")


def _check_sampling(
    where: str, name: str, sampling: SamplingConfig, rollout: VllmRolloutConfig, algorithm: AlgorithmConfig
) -> Iterator[ConfigError]:
    """Settings that vLLM's sampler applies differently, and filters of its log-probabilities."""
    if sampling.temperature > 2:
        yield ConfigError(
            f"{where}rollout.temperature={sampling.temperature}", "is more than vLLM allows", "use at most 2"
        )
    if sampling.min_p > 0 and sampling.top_p < 1:
        yield ConfigError(
            f"{where}rollout.min_p={sampling.min_p} rollout.top_p={sampling.top_p}",
            "are applied in another order by vLLM than by rollout=hf",
            "set rollout.min_p=0 or rollout.top_p=1",
        )
    if sampling.min_new_tokens > 0 and sampling.stop_strings:
        yield ConfigError(
            f"{where}rollout.min_new_tokens={sampling.min_new_tokens}",
            "delays stop strings with rollout=vllm, but not with rollout=hf",
            "set it to 0, or remove rollout.stop_strings",
        )
    if sampling.has_filters and not rollout.recompute_logprobs:
        to_sampler = algorithm.ratio_base is RatioBase.sampler
        yield ConfigError(
            "algorithm.ratio_base=sampler" if to_sampler else "rollout.recompute_logprobs=false",
            f"leaves {name} without the policy's log-probabilities: vLLM returns those of filtered tokens",
            f"use {'algorithm.ratio_base=policy, rollout=hf' if to_sampler else 'true'}, or no filter "
            "(top_p, top_k, min_p, repetition_penalty, min_new_tokens)",
        )


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(f"//{text}")
        return bool(parts.hostname) and parts.netloc == text and parts.port != 0
    except ValueError:  # the port is no number below 2**16
        return False


def check_ahead(config: Config) -> Iterator[ConfigError]:
    """Settings of training that need samples of the current weights, or engines that stop while the rank trains."""
    rollout = config.rollout
    if not isinstance(rollout, VllmRolloutConfig):
        return
    if not rollout.ahead:
        if rollout.in_flight_updates:
            yield ConfigError(
                "rollout.in_flight_updates=true",
                "has no effect with rollout.ahead=0: no response is in progress at an update",
                "set rollout.ahead=1, or use false",
            )
        return
    setting = f"rollout.ahead={rollout.ahead}"
    if rollout.vllm.mode is VllmMode.colocate:
        yield ConfigError(
            setting,
            "needs engines that sample while the ranks train, and those of rollout.vllm.mode=colocate sleep then",
            "set rollout.vllm.mode=server, or use 0",
        )
    if config.reward.reward_batch_rows:
        yield ConfigError(
            f"{setting} reward.reward_batch_rows={config.reward.reward_batch_rows}",
            "would call the reward for the next iteration's episodes while it scores the current ones",
            "set reward.reward_batch_rows=0, or use rollout.ahead=0",
        )
    adapters = [name for name, agent in config.task.agents.items() if isinstance(agent.actor, LoraActorConfig)]
    if rollout.in_flight_updates and adapters:
        yield ConfigError(
            "rollout.in_flight_updates=true",
            f"does not support the adapters of {join_names(adapters)}: servers do not report their versions by token",
            "use false, or actor=full",
        )


def check_openai_server(config: Config, *, training: bool) -> Iterator[ConfigError]:
    """Servers that keep their weights sample for agents that keep theirs."""
    rollout = config.rollout
    if not isinstance(rollout, OpenAIServerRolloutConfig):
        return
    if not rollout.server.url:
        yield ConfigError(
            "rollout.server.url=[]",
            "names no server",
            "use an address such as rollout.server.url=[http://127.0.0.1:8000]",
        )
    trained = [name for name, agent in config.task.agents.items() if not agent.frozen]
    if training and trained:
        yield ConfigError(
            "rollout=openai_server",
            f"keeps its servers' weights, and {join_names(trained)} would be trained on samples of other weights",
            "use rollout=vllm or rollout=hf; rollout=openai_server serves ippo-eval",
        )
