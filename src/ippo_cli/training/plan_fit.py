"""Which ways to spread a run's models over its devices leave room for what it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ippo_cli.config.arithmetic import Arithmetic
from ippo_cli.config.schema import AgentConfig, Config, SeparateCriticConfig, Zero3Gather
from ippo_cli.tasks.task import Task
from ippo_cli.training.memory import Memory
from ippo_cli.training.preflight import Machine, Material, memory_of

# What is offloaded, and how weights are gathered to decode at stage 3, by what is typed for it.
WAYS = {
    "zero1": (1, False, False, Zero3Gather.all),
    "zero2": (2, False, False, Zero3Gather.all),
    "zero2 deepspeed.offload_optimizer=true": (2, True, False, Zero3Gather.all),
    "zero3": (3, False, False, Zero3Gather.all),
    "zero3 rollout.zero3_gather=layer": (3, False, False, Zero3Gather.layer),
    "zero3_offload": (3, True, True, Zero3Gather.all),
    "zero3_offload rollout.zero3_gather=layer": (3, True, True, Zero3Gather.layer),
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
    """Every way, from the one that sends least to the one that holds least."""

    def memory(way: Config) -> Memory:
        return memory_of(way, plan, task, material, ranks, machine.device)

    asked = config.deepspeed
    for keys, (stage, optimizer, params, gather) in WAYS.items():
        deepspeed = replace(asked, stage=stage, offload_optimizer=optimizer, offload_params=params)
        way = replace(config, deepspeed=deepspeed, rollout=replace(config.rollout, zero3_gather=gather))
        needs = memory(way)
        yield Option(
            keys=f"deepspeed={keys}",
            asked=deepspeed == asked and (stage < 3 or gather is config.rollout.zero3_gather),
            certain=needs.certain,
            greatest=needs.greatest,
            host=needs.host,
            plain=_most_tokens(way, memory, machine),
            checkpointed=_most_tokens(_checkpointed(way), memory, machine),
        )


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
