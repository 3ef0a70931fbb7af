"""Which ways to spread a run's models over its devices leave room for what it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ippo_cli.config.batch_sizes import Arithmetic
from ippo_cli.config.checks import check
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import AgentConfig, Config, SeparateCriticConfig, Zero3Gather
from ippo_cli.planning.memory import Memory
from ippo_cli.planning.preflight import Machine, Material, memory_of
from ippo_cli.tasks.task import Task

Way = tuple[int, bool, bool, Zero3Gather]  # stage, what is offloaded, and how stage 3 gathers weights to decode

# By what is typed for it.
WAYS: dict[str, Way] = {
    "deepspeed=zero1": (1, False, False, Zero3Gather.all),
    "deepspeed=zero2": (2, False, False, Zero3Gather.all),
    "deepspeed=zero2 deepspeed.offload_optimizer=true": (2, True, False, Zero3Gather.all),
    "deepspeed=zero3": (3, False, False, Zero3Gather.all),
    "deepspeed=zero3 rollout.zero3_gather=layer": (3, False, False, Zero3Gather.layer),
    "deepspeed=zero3_offload": (3, True, True, Zero3Gather.all),
    "deepspeed=zero3_offload rollout.zero3_gather=layer": (3, True, True, Zero3Gather.layer),
}
BATCHES = tuple(1 << power for power in range(10, 21))
"""Tokens of a micro-batch that are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One way to spread the models, and what it leaves room for."""

    keys: str
    asked: bool  # whether it is what the configuration says
    certain: float  # bytes on a device of weights, gradients and optimizer
    greatest: tuple[str, float]  # phase and bytes of the greatest moment, with micro_batch_tokens as they are
    host: float  # bytes in the machine's memory for each rank
    plain: int  # the most micro_batch_tokens of those tried that fit; 0 where none do
    checkpointed: int  # likewise with gradient_checkpointing


def what_fits(
    config: Config, plan: Arithmetic, task: Task, material: Material, machine: Machine, ranks: int
) -> Iterator[Option]:
    """Every way, from the one that sends least to the one that holds least; first the one asked for if it is none."""

    def memory(way: Config) -> Memory:
        return memory_of(way, plan, task, material, ranks, machine.device)

    given = config.deepspeed
    gather = config.rollout.zero3_gather if given.stage == 3 else Zero3Gather.all
    asked = given.stage, given.offload_optimizer, given.offload_params, gather
    ways = WAYS if asked in WAYS.values() else {f"deepspeed.stage={given.stage}": asked} | WAYS
    for keys, kind in ways.items():
        stage, optimizer, params, gather = kind
        deepspeed = replace(given, stage=stage, offload_optimizer=optimizer, offload_params=params)
        way = replace(config, deepspeed=deepspeed, rollout=replace(config.rollout, zero3_gather=gather))
        if kind != asked and not _allowed(way, ranks):
            continue
        needs = memory(way)
        yield Option(
            keys=keys,
            asked=kind == asked,
            certain=needs.certain,
            greatest=needs.greatest,
            host=needs.host,
            plain=_most_tokens(way, memory, machine),
            checkpointed=_most_tokens(_checkpointed(way), memory, machine),
        )


def _allowed(way: Config, ranks: int) -> bool:
    """Whether a run may be spread so: adapters may not be at stage 3."""
    try:
        check(way, ranks)
    except ConfigError:
        return False
    return True


def _most_tokens(way: Config, memory: Callable[[Config], Memory], machine: Machine) -> int:
    """Until one micro-batch holds all rows of a step: more tokens change nothing."""
    most = 0
    for tokens in BATCHES:
        needs = memory(replace(way, deepspeed=replace(way.deepspeed, micro_batch_tokens=tokens)))
        if machine.lacks(needs.greatest[1], needs.host) is not None:
            break
        most = tokens
        if not any(model.several for model in needs.trained):
            break
    return most


def _checkpointed(config: Config) -> Config:
    agents = {name: _agent_checkpointed(agent) for name, agent in config.task.agents.items()}
    return replace(config, task=replace(config.task, agents=agents))


def _agent_checkpointed(agent: AgentConfig) -> AgentConfig:
    actor, critic = replace(agent.actor, gradient_checkpointing=True), agent.critic
    if isinstance(critic, SeparateCriticConfig):
        critic = replace(critic, gradient_checkpointing=True)
    return replace(agent, actor=actor, critic=critic)
