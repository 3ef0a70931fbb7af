"""Sharding options of a run, with their memory and the micro-batch size that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import AgentConfig, Config, Zero3Gather
from ippo_cli.config.served_agents import local_agents
from ippo_cli.planning.prepare import Prepared
from ippo_cli.planning.resources import estimate_all_memory
from ippo_cli.planning.run_memory import Machine, RunMemory

Sharding = tuple[int, bool, bool, Zero3Gather]  # stage, offload_optimizer, offload_params, zero3_gather

# By command-line overrides.
SHARDINGS: dict[str, Sharding] = {
    "deepspeed=zero1": (1, False, False, Zero3Gather.all),
    "deepspeed=zero2": (2, False, False, Zero3Gather.all),
    "deepspeed=zero2 deepspeed.offload_optimizer=true": (2, True, False, Zero3Gather.all),
    "deepspeed=zero3": (3, False, False, Zero3Gather.all),
    "deepspeed=zero3 rollout.zero3_gather=layer": (3, False, False, Zero3Gather.layer),
    "deepspeed=zero3_offload": (3, True, True, Zero3Gather.all),
    "deepspeed=zero3_offload rollout.zero3_gather=layer": (3, True, True, Zero3Gather.layer),
}
MICRO_BATCH_TOKENS = tuple(1 << power for power in range(10, 21))
"""Values of `micro_batch_tokens` to try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingOption:
    """One sharding of the models, its memory, and the micro-batch size that fits."""

    overrides: str
    is_configured: bool  # whether it is the configured one
    certain_bytes: float  # device bytes of weights, gradients and optimizer
    peak_phase: tuple[str, float]  # phase and bytes of the peak, with the configured micro_batch_tokens
    host_bytes: float  # host bytes per rank
    max_tokens: int  # largest of `MICRO_BATCH_TOKENS` that fits; 0 if none does
    max_tokens_checkpointed: int  # the same with gradient_checkpointing


def sharding_options(prepared: Prepared, machine: Machine) -> Iterator[ShardingOption]:
    """All sharding options, from least communication to least memory; the configured one first if it is not listed."""

    def estimate_memory(way: Config) -> RunMemory:
        return estimate_all_memory(
            way, prepared.batch_sizes, prepared.task, prepared.specs, prepared.ranks, machine.device
        )

    config = prepared.config
    configured = sharding_of(config)
    shardings = (
        SHARDINGS if configured in SHARDINGS.values() else {f"deepspeed.stage={configured[0]}": configured} | SHARDINGS
    )
    for keys, kind in shardings.items():
        way = set_sharding(config, kind)
        if kind != configured and not is_allowed(way, prepared.ranks):
            continue
        needs = estimate_memory(way)
        yield ShardingOption(
            overrides=keys,
            is_configured=kind == configured,
            certain_bytes=max(memory.certain_bytes for memory in needs.by_ranks.values()),
            peak_phase=needs.highest.peak_phase,
            host_bytes=max(memory.host_bytes for memory in needs.by_ranks.values()),
            max_tokens=_max_micro_batch_tokens(way, estimate_memory, machine),
            max_tokens_checkpointed=_max_micro_batch_tokens(enable_checkpointing(way), estimate_memory, machine),
        )


def sharding_of(config: Config) -> Sharding:
    """The configured sharding."""
    settings = config.deepspeed
    gather = config.rollout.zero3_gather if settings.stage == 3 else Zero3Gather.all
    return settings.stage, settings.offload_optimizer, settings.offload_params, gather


def set_sharding(config: Config, sharding: Sharding) -> Config:
    """The configuration with another sharding."""
    stage, optimizer, params, gather = sharding
    deepspeed = replace(config.deepspeed, stage=stage, offload_optimizer=optimizer, offload_params=params)
    return replace(config, deepspeed=deepspeed, rollout=replace(config.rollout, zero3_gather=gather))


def is_allowed(config: Config, ranks: int) -> bool:
    """Whether the configuration is valid with this sharding; adapters, e.g., do not support stage 3."""
    try:
        check_config(config, ranks)
    except ConfigError:
        return False
    return True


def _max_micro_batch_tokens(config: Config, estimate_memory: Callable[[Config], RunMemory], machine: Machine) -> int:
    """The largest of `MICRO_BATCH_TOKENS` that fits, up to one micro-batch per optimizer step."""
    most = 0
    for tokens in MICRO_BATCH_TOKENS:
        needs = estimate_memory(replace(config, deepspeed=replace(config.deepspeed, micro_batch_tokens=tokens)))
        if needs.find_shortfall(machine, lambda memory: memory.peak_phase[1]) is not None:
            break
        most = tokens
        if not any(model.has_several_micro_batches for memory in needs.by_ranks.values() for model in memory.trained):
            break
    return most


def enable_checkpointing(config: Config) -> Config:
    """The configuration with recomputed activations of all agents' models."""
    changed = {name: _enable_agent_checkpointing(agent) for name, agent in local_agents(config).items()}
    return replace(config, task=replace(config.task, agents={**config.task.agents, **changed}))


def _enable_agent_checkpointing(agent: AgentConfig) -> AgentConfig:
    actor, critic = replace(agent.actor, gradient_checkpointing=True), agent.critic
    if critic.has_own_backbone:
        critic = replace(critic, gradient_checkpointing=True)
    return replace(agent, actor=actor, critic=critic)
