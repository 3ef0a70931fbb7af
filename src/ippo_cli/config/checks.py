"""Checks of a configuration before any model loads: constraints of single values, and rules between groups."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

from ippo_cli.config.agent_checks import check_agent
from ippo_cli.config.algorithm_checks import ALGORITHM_RULES
from ippo_cli.config.batch_sizes import format_divisors
from ippo_cli.config.constraints import Constraint, constraints
from ippo_cli.config.credit import check_credit
from ippo_cli.config.critic_fitting import check_critic_mode
from ippo_cli.config.critics import check_critics
from ippo_cli.config.engines import check_engines, check_servers
from ippo_cli.config.errors import Check, ConfigError, collect_errors, combine_errors
from ippo_cli.config.faults import parse_fault
from ippo_cli.config.hardware import check_plan
from ippo_cli.config.learning_order import check_learning_order
from ippo_cli.config.method_checks import METHOD_RULES
from ippo_cli.config.model_args import check_model_args
from ippo_cli.config.pilot import check_pilot
from ippo_cli.config.placement_checks import check_placement
from ippo_cli.config.references import check_references
from ippo_cli.config.rewards import check_rewards
from ippo_cli.config.schema import (
    Config,
    LoraActorConfig,
    SamplingConfig,
    SeparateCriticConfig,
    TinyActorConfig,
    Zero3Gather,
)
from ippo_cli.config.served_agents import check_served_agents
from ippo_cli.config.task_checks import STOP_RULES, check_primary_metric, check_task, check_turns
from ippo_cli.config.teams import check_team
from ippo_cli.config.time_limit import check_deadline
from ippo_cli.config.tools import check_tools


def check_config(config: Config, world_size: int, *, training: bool = True) -> None:
    """Raise `ConfigError` with all broken rules; `training=False` skips rules about training."""
    rules: list[Check] = [
        *(partial(rule, config) for rule in RUN_RULES),
        *(partial(check_agent, config, name, agent) for name, agent in config.task.agents.items()),
        partial(check_task, config.task, training=training),
        partial(check_team, config),
        *([partial(check_learning_order, config)] if training else []),
        partial(check_turns, config),
        partial(check_tools, config),
        partial(_check_buffer, config, world_size),
        partial(_check_rollout, config, world_size),
        partial(check_servers, config, training=training),
        partial(check_served_agents, config, training=training),
        *([partial(rule, config) for rule in METHOD_RULES] if training else []),
        *(partial(rule, config) for rule in ALGORITHM_RULES),
        partial(check_critics, config),
        partial(_check_deepspeed, config),
        *([partial(_check_model_parallel, config, world_size)] if training else []),
        partial(check_model_args, config),
        partial(check_rewards, config),
        partial(check_credit, config),
        *([partial(check_references, config), partial(check_placement, config, world_size)] if training else []),
    ]
    if errors := collect_errors(rules, constraint_errors(config)):
        raise combine_errors(errors)


def constrained_leaves(
    node: Any, prefix: str = "", of_fields: Callable[[type[Any]], Mapping[str, Any]] = constraints
) -> Iterator[tuple[str, Any, Any]]:
    """Yield dotted name, value and constraint of every leaf; `of_fields` maps a class to values by field."""
    known = of_fields(type(node)) if is_dataclass(node) else {}
    parts = node if isinstance(node, dict) else {leaf.name: getattr(node, leaf.name) for leaf in fields(node)}
    for name, value in parts.items():
        if is_dataclass(value) or isinstance(value, dict):
            yield from constrained_leaves(value, f"{prefix}{name}.", of_fields)
        else:
            yield f"{prefix}{name}", value, known.get(name)


def constraint_errors(node: Any, prefix: str = "") -> list[ConfigError]:
    """One error for every value that violates its field's constraint."""
    errors: list[ConfigError] = []
    broken_by_group: dict[str, Any] = {}
    # Agents last: a value that all agents inherit from a group is reported once, under the group's key.
    for key, value, constraint in sorted(
        constrained_leaves(node, prefix), key=lambda leaf: leaf[0].startswith("task.agents.")
    ):
        broken = _find_violation(value, constraint)
        of_group = key.split(".", 3)[-1] if key.startswith("task.agents.") else key
        if broken is None or (of_group != key and broken_by_group.get(of_group) == str(value)):
            continue
        broken_by_group[key] = str(value)
        errors.append(ConfigError(f"{key}={'' if value == [] else value}", *broken))
    return errors


def check_constraints(node: Any, prefix: str = "") -> None:
    """Raise `ConfigError` with every value that violates its field's constraint."""
    if errors := constraint_errors(node, prefix):
        raise combine_errors(errors)


def _find_violation(value: Any, constraint: Constraint | None) -> tuple[str, str] | None:
    if isinstance(value, float) and not math.isfinite(value):
        return "must be a finite number", "use a finite number"
    return None if value is None or constraint is None else constraint.violation(value)


def _check_resume(config: Config) -> None:
    if config.resume != "never":  # resume= of the command line is removed before composition
        raise ConfigError(f"resume={config.resume}", "has an effect on the command line only", "set it there")


def _check_iterations(config: Config) -> Iterator[ConfigError]:
    if (config.num_iterations is None) == (config.num_epochs is None):
        yield ConfigError(
            f"num_iterations={config.num_iterations} num_epochs={config.num_epochs}",
            "must not both be set or both be null",
            "add num_epochs=null, or num_iterations=null" if config.num_epochs else "set one of them",
        )
    if (
        config.max_iterations_this_run is not None
        and config.num_iterations is not None
        and config.max_iterations_this_run > config.num_iterations
    ):
        yield ConfigError(
            f"max_iterations_this_run={config.max_iterations_this_run}",
            f"is never reached with num_iterations={config.num_iterations}",
            "use a smaller number, or null",
        )


def _check_processes(config: Config) -> Iterator[ConfigError]:
    for text in config.debug_faults:
        parse_fault(text)
    check_deadline(config.checkpoint.save_deadline)
    if config.launch.watchdog_s is not None and config.launch.watchdog_first_s < config.launch.watchdog_s:
        yield ConfigError(
            f"launch.watchdog_first_s={config.launch.watchdog_first_s:g}",
            f"is shorter than launch.watchdog_s={config.launch.watchdog_s:g}",
            "use at least as much: loading takes longer than a step",
        )


def _check_name(config: Config) -> None:
    if not re.fullmatch(r"[\w.-]+", config.name) or config.name.startswith("."):
        raise ConfigError(f"name={config.name}", "is not a folder name", "use letters, digits, '-', '_' and '.'")


def _check_agents(config: Config) -> None:
    if not config.task.agents:
        raise ConfigError("task.agents={}", "has no agents", "name at least one agent in the task file")


RUN_RULES = (
    _check_resume,
    _check_iterations,
    _check_processes,
    _check_name,
    check_plan,
    check_pilot,
    _check_agents,
    check_primary_metric,
    *STOP_RULES,
    check_critic_mode,
)


def _check_buffer(config: Config, world_size: int) -> None:
    rollout = config.rollout
    size = rollout.buffer_size
    if size % rollout.num_generations:
        raise ConfigError(
            f"rollout.num_generations={rollout.num_generations}",
            f"does not divide rollout.buffer_size={size}",
            "use one of " + format_divisors(size),
        )
    if size < world_size:
        raise ConfigError(
            f"rollout.buffer_size={size}",
            f"leaves some of the {world_size} processes without a sample",
            f"use at least {world_size}",
        )


def _check_rollout(config: Config, world_size: int) -> None:
    rollout = config.rollout
    _check_sampling("", rollout)  # the group first: values that agents inherit are reported under the group's key
    for name, agent in config.task.agents.items():
        _check_sampling(f"task.agents.{name}.", agent.rollout)
    for error in check_engines(config, world_size):
        raise error
    if rollout.zero3_gather is Zero3Gather.layer and config.deepspeed.stage != 3:
        raise ConfigError(
            "rollout.zero3_gather=layer", "has an effect at ZeRO stage 3 only", "use deepspeed=zero3, or all"
        )


def _check_sampling(where: str, sampling: SamplingConfig) -> None:
    if sampling.min_new_tokens > sampling.max_new_tokens:
        raise ConfigError(
            f"{where}rollout.min_new_tokens={sampling.min_new_tokens}",
            f"is more than {where}rollout.max_new_tokens={sampling.max_new_tokens}",
            "lower it",
        )
    if "" in sampling.stop_strings:
        raise ConfigError(
            f"{where}rollout.stop_strings", "has an empty string, which every response contains", "remove it"
        )


def _check_deepspeed(config: Config) -> Iterator[ConfigError]:
    deepspeed = config.deepspeed
    if deepspeed.offload_params and deepspeed.stage != 3:
        yield ConfigError(
            "deepspeed.offload_params=true", f"needs ZeRO stage 3, not {deepspeed.stage}", "use deepspeed=zero3_offload"
        )
    if deepspeed.offload_optimizer and deepspeed.stage == 0:
        yield ConfigError("deepspeed.offload_optimizer=true", "needs ZeRO stage 1, 2 or 3", "use deepspeed=zero1")


def _check_model_parallel(config: Config, world_size: int) -> Iterator[ConfigError]:
    """Rules that need no model; `planning.parallelism` checks the models."""
    deepspeed = config.deepspeed
    ranks = deepspeed.ranks_per_group
    if ranks == 1:
        return
    if deepspeed.tensor_parallel > 1 and deepspeed.sequence_parallel > 1:
        yield ConfigError(
            f"deepspeed.tensor_parallel={deepspeed.tensor_parallel} "
            f"deepspeed.sequence_parallel={deepspeed.sequence_parallel}",
            "cannot be combined: attention heads are split by one of them",
            "set one of them to 1; sequence_parallel works at every ZeRO stage",
        )
    setting = f"deepspeed.sequence_parallel={ranks}"
    if deepspeed.tensor_parallel > 1:
        setting = f"deepspeed.tensor_parallel={ranks}"
        yield from _check_tensor_parallel(config, setting)
    elif not deepspeed.pack_sequences:
        yield ConfigError(
            f"{setting} deepspeed.pack_sequences=false",
            "split padded rows, but only packed rows can be split over ranks",
            "set deepspeed.pack_sequences=true, or deepspeed.sequence_parallel=1",
        )
    if world_size % ranks:
        yield ConfigError(
            setting,
            f"does not divide the number of ranks, {world_size}",
            f"use one of {format_divisors(world_size)}, or a multiple of {ranks} ranks (launch.processes)",
        )
    yield from _check_tiny_heads(config, setting, ranks)


def _check_tensor_parallel(config: Config, setting: str) -> Iterator[ConfigError]:
    if config.deepspeed.stage == 3:
        yield ConfigError(
            f"{setting} deepspeed.stage=3",
            "both split the weights",
            "use deepspeed=zero1 or zero2, or deepspeed.tensor_parallel=1; stage 3 splits every weight over all ranks",
        )
    if config.deepspeed.offload_optimizer:
        yield ConfigError(
            f"{setting} deepspeed.offload_optimizer=true",
            "have not been verified together",
            "set deepspeed.offload_optimizer=false, or deepspeed.tensor_parallel=1",
        )
    if config.checkpoint.reshard:
        yield ConfigError(
            f"{setting} checkpoint.reshard=true",
            "is impossible: optimizer states of split weights cannot be loaded on another number of ranks",
            "set checkpoint.reshard=false",
        )
    for name, agent in config.task.agents.items():
        if isinstance(agent.critic, SeparateCriticConfig) and agent.critic.freeze and not agent.frozen:
            yield ConfigError(
                f"{setting} critic.freeze=[{','.join(agent.critic.freeze)}]",
                f"have not been verified together (critic of {name})",
                "set critic.freeze=[], or deepspeed.tensor_parallel=1",
            )
            return
        if isinstance(agent.actor, LoraActorConfig) and not agent.frozen:
            yield ConfigError(
                setting,
                f"splits the linear maps of trained models, and the actor of {name} trains adapters on frozen ones",
                "use deepspeed.tensor_parallel=1 or sequence_parallel with actor=lora, or actor=full",
            )
            return


def _check_tiny_heads(config: Config, setting: str, ranks: int) -> Iterator[ConfigError]:
    """Locally created models are checked before they are created."""
    for name, agent in config.task.agents.items():
        if isinstance(agent.actor, TinyActorConfig) and not agent.frozen and agent.actor.num_heads % ranks:
            yield ConfigError(
                setting,
                f"does not divide actor.num_heads={agent.actor.num_heads} of {name}",
                f"use one of {format_divisors(agent.actor.num_heads)}, or another actor.num_heads",
            )
            return
