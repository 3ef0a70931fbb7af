"""Weight sharing: which agents share a policy, a critic and a base model."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import (
    ALL_LINEAR,
    AdapterCriticConfig,
    AgentConfig,
    CentralizedCriticConfig,
    Config,
    LoraActorConfig,
    LoraConfig,
    OptimizedCriticConfig,
    OptimizerConfig,
    SeparateCriticConfig,
    SharedBaseConfig,
    SharedPolicyConfig,
)

SHARED_GROUP = "shared"  # the group of all agents where none is named
TEAM_CRITIC = "team"  # the critic of all agents
RESERVED_NAMES = ("eval", "time", "perf", "iteration")  # prefixes of metric names that are not agents or groups

REFERENCE_KEYS = {"reference", "reference_update_every"}


def agents_by_policy(config: Config) -> dict[str, tuple[str, ...]]:
    """Agents by policy, in the task's order.

    The policy's name occurs in metrics, folders of checkpoints and initial weights, and errors. It is the agent's name
    if the agent shares its weights with no other, such as a frozen agent.
    """
    groups = _team_groups(config) if isinstance(config.team, SharedPolicyConfig) else {}
    return _agents_by_group(config, groups)


def agents_by_base(config: Config) -> dict[str, tuple[str, ...]]:
    """Agents by initial model, in the task's order.

    With `team=shared_base` the adapters of a group share one frozen model in memory. Otherwise every policy has its own
    base of the same name.
    """
    return _agents_by_group(config, _team_groups(config))


def base_by_policy(config: Config) -> dict[str, str]:
    """Name of the base by policy."""
    return {
        holder: base for base, names in agents_by_base(config).items() for holder in _policies_for_agents(config, names)
    }


def _policies_for_agents(config: Config, names: Sequence[str]) -> list[str]:
    policy_of = policy_by_agent(config)
    return list(dict.fromkeys(policy_of[name] for name in names))


def _team_groups(config: Config) -> Mapping[str, Sequence[str]]:
    team = config.team
    if isinstance(team, SharedPolicyConfig | SharedBaseConfig):
        return team.groups or {SHARED_GROUP: [name for name, agent in config.task.agents.items() if not agent.frozen]}
    return {}


def _agents_by_group(config: Config, groups: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    group_of = {name: group for group, names in groups.items() for name in names}
    found: dict[str, list[str]] = {}
    for name in config.task.agents:
        found.setdefault(group_of.get(name, name), []).append(name)
    return {group: tuple(names) for group, names in found.items()}


def trained_agents_by_policy(config: Config) -> dict[str, tuple[str, ...]]:
    """Agents by policy, trained policies only."""
    agents = config.task.agents
    return {holder: names for holder, names in agents_by_policy(config).items() if not agents[names[0]].frozen}


def policy_by_agent(config: Config) -> dict[str, str]:
    """Name of the policy by agent."""
    return {agent: holder for holder, agents in agents_by_policy(config).items() for agent in agents}


def agents_by_critic(config: Config) -> dict[str, tuple[str, ...]]:
    """Agents by critic, in the task's order; only critics with a separate optimizer, each of an ensemble."""
    agents = config.task.agents
    if shares_critic(config):
        return {TEAM_CRITIC: tuple(name for name, agent in agents.items() if not agent.frozen)}
    found: dict[str, tuple[str, ...]] = {}
    for name, own in trained_agents_by_policy(config).items():
        critic = agents[own[0]].critic
        if isinstance(critic, OptimizedCriticConfig):
            found |= dict.fromkeys(ensemble_names(name, critic), own)
    return found


def ensemble_names(holder: str, critic: OptimizedCriticConfig) -> tuple[str, ...]:
    """The names of the critics of a policy; the first is that of the policy."""
    size = critic.ensemble if isinstance(critic, SeparateCriticConfig) else 1
    return (holder, *(f"{holder}_critic{number}" for number in range(2, size + 1)))


def critic_by_agent(config: Config) -> dict[str, str]:
    """Name of the critic by agent, of an ensemble the first; only critics with a separate optimizer."""
    by_critic = reversed(agents_by_critic(config).items())
    return {agent: critic for critic, agents in by_critic for agent in agents}


def value_holders(config: Config) -> dict[str, str]:
    """By agent: the name of the weights with its values, which are those of its policy for `critic=value_head`."""
    return policy_by_agent(config) | critic_by_agent(config)


def shares_critic(config: Config) -> bool:
    """Whether all agents share one centralised critic."""
    return isinstance(config.critic, CentralizedCriticConfig) and config.critic.shared


def check_usable_name(where: str, name: str) -> None:
    """Raise `ConfigError` for an agent's or a group's name that is invalid in metric names or folders."""
    if not re.fullmatch(r"[A-Za-z]\w*", name) or name in RESERVED_NAMES:
        raise ConfigError(
            where,
            "is used in metric names and folders",
            "use letters, digits and '_', but none of " + " ".join(RESERVED_NAMES),
        )


def check_team(config: Config) -> None:
    """Raise `ConfigError` for invalid groups, and for different settings of agents that share weights."""
    team, agents = config.team, config.task.agents
    for name, agent in agents.items():
        if agent.frozen:
            _check_frozen_settings(config, name, agent)
    if shares_critic(config):
        _check_shared_critic(config)
    _check_adapters(config)
    if not isinstance(team, SharedPolicyConfig | SharedBaseConfig):
        return
    if not team.groups and SHARED_GROUP in agents:
        raise ConfigError(
            "team.groups={}",
            f"puts all agents into a group named {SHARED_GROUP}, and an agent has that name",
            f"name the group: team.groups={{team:[{','.join(agents)}]}}",
        )
    _check_groups(team.groups, agents)
    if isinstance(team, SharedBaseConfig):
        _check_bases(config)
        return
    for group, names in agents_by_policy(config).items():
        for name in names[1:]:
            why = f"both are in group {group}, which has one {{part}}", "use another group"
            _check_equal_settings(SHARED_SETTINGS, why, names[0], agents[names[0]], name, agents[name])


def _check_adapters(config: Config) -> None:
    """Check that adapters have a frozen, unsharded base."""
    for name, agent in config.task.agents.items():
        if isinstance(agent.actor, LoraActorConfig) and config.team.opponent_pool.every:
            raise ConfigError(
                f"team.opponent_pool.every={config.team.opponent_pool.every}",
                f"keeps snapshots of whole models, and actor={agent.actor.kind.value} of {name} trains an adapter",
                "use 0, or actor=full or actor=tiny",
            )
        if isinstance(agent.critic, AdapterCriticConfig) and not isinstance(agent.actor, LoraActorConfig):
            raise ConfigError(
                "critic=adapter",
                f"needs a frozen base, and actor={agent.actor.kind.value} trains all of {name}'s model",
                "use actor=lora or actor=tiny_lora, or critic=separate",
            )
        for part, settings in (("actor", agent.actor), ("critic", agent.critic)):
            if isinstance(settings, LoraConfig):
                _check_targets(part, settings.target_modules)
                if config.deepspeed.stage == 3:
                    raise ConfigError(
                        "deepspeed.stage=3",
                        f"shards trained weights over ranks, and {part}={settings.kind.value} trains an adapter with "
                        "an unsharded base",
                        "use deepspeed=zero0, zero1 or zero2",
                    )


def _check_targets(part: str, targets: Any) -> None:
    if targets != ALL_LINEAR and not (
        isinstance(targets, list) and targets and all(isinstance(target, str) and target for target in targets)
    ):
        raise ConfigError(
            f"{part}.target_modules={_format_value(targets)}",
            "is neither all-linear nor a list of names",
            f"use {part}.target_modules=all-linear or {part}.target_modules=[q_proj,v_proj]",
        )


def _check_bases(config: Config) -> None:
    """Check that agents with one base train adapters and have the same base model."""
    agents = config.task.agents
    for group, names in agents_by_base(config).items():
        if agents[names[0]].frozen:
            continue  # frozen agents share no base
        for name in names:
            actor = agents[name].actor
            if not isinstance(actor, LoraActorConfig):
                raise ConfigError(
                    "team=shared_base",
                    f"freezes the base of {group}, and actor={actor.kind.value} of {name} trains all of it",
                    "use actor=lora or actor=tiny_lora, or team=shared_policy",
                )
        own = (
            {leaf.name for kind in (LoraConfig, OptimizerConfig) for leaf in fields(kind)}
            | {"adapter"}
            | REFERENCE_KEYS
        )
        for name in names[1:]:
            why = f"both are in group {group}, which has one base", "use another group"
            _check_equal_settings({"actor": ()}, why, names[0], agents[names[0]], name, agents[name], free=own)


def _check_groups(groups: Mapping[str, Sequence[str]], agents: Mapping[str, AgentConfig]) -> None:
    group_of: dict[str, str] = {}
    for group, names in groups.items():
        where, written = f"team.groups.{group}", f"team.groups.{group}=[{','.join(map(str, names))}]"
        check_usable_name(where, group)
        if group in agents:
            raise ConfigError(where, "has the name of an agent", "give the group another name")
        if not names:
            raise ConfigError(written, "is empty", f"name some of {' '.join(agents)}, or remove it")
        for name in names:
            if name not in agents:
                raise ConfigError(written, f"names {name}, which is not an agent", f"use some of {' '.join(agents)}")
            if agents[name].frozen:
                raise ConfigError(
                    written,
                    f"names {name}, which is not trained (task.agents.{name}.frozen=true)",
                    "remove it from the group: agents outside groups have their own weights",
                )
            if name in group_of:
                raise ConfigError(
                    written, f"names {name}, which is already in group {group_of[name]}", "name each agent once"
                )
            group_of[name] = group


def _check_shared_critic(config: Config) -> None:
    agents = config.task.agents
    if TEAM_CRITIC in agents_by_policy(config) or TEAM_CRITIC in agents:
        raise ConfigError(
            "critic.shared=true",
            f"creates a critic named {TEAM_CRITIC}, and an agent or a group has that name",
            "rename the agent or the group, or use critic.shared=false",
        )
    first, *others = [name for name, agent in agents.items() if not agent.frozen]
    why = "critic.shared=true has one for all", "use critic.shared=false"
    for name in others:
        _check_equal_settings({"critic": ()}, why, first, agents[first], name, agents[name])
        for key in ("mini_batch_size", "ppo_epochs"):  # null = the value of the critic's agents
            wanted, value = (getattr(agents[agent].algorithm, key) for agent in (first, name))
            if getattr(agents[first].critic, key) is None and wanted != value:
                raise ConfigError(
                    f"critic.{key}=null",
                    f"follows algorithm.{key}, which is {_format_value(wanted)} of {first} and {_format_value(value)} "
                    f"of {name}, and critic.shared=true has one critic for all",
                    f"set critic.{key}",
                )


# Settings that agents of a group share; () = all keys of the part. All rows of a policy use one temperature in
# log-probabilities; other sampling settings may differ.
SHARED_SETTINGS: dict[str, tuple[str, ...]] = {"actor": (), "critic": (), "algorithm": (), "rollout": ("temperature",)}


def _check_equal_settings(
    parts: Mapping[str, tuple[str, ...]],
    why: tuple[str, str],
    first: str,
    its: AgentConfig,
    name: str,
    own: AgentConfig,
    free: Collection[str] = (),
) -> None:
    """Raise `ConfigError` if two agents that share an actor, critic or base have different settings.

    `why` is rule and remedy. Compares the listed keys of each part, or all keys if none is listed, except `free` keys.
    """
    rule, remedy = why
    for part, keys in parts.items():
        expected, actual = getattr(its, part), getattr(own, part)
        # Compare `kind` first: other keys depend on it.
        for key in keys or sorted((field.name for field in fields(expected)), key=lambda key: key != "kind"):
            wanted, value = getattr(expected, key), getattr(actual, key, None)
            if key not in free and wanted != value:
                raise ConfigError(
                    f"task.agents.{name}.{part}.{key}={_format_value(value)}",
                    f"differs from {first}'s {_format_value(wanted)}, and {rule.format(part=key if keys else part)}",
                    f"set {part}.{key} for all agents, or {remedy}",
                )


def _check_frozen_settings(config: Config, name: str, agent: AgentConfig) -> None:
    """Raise `ConfigError` for training settings of a frozen agent, which have no effect.

    Actor and critic of another kind are not checked, because their defaults differ from the shared settings.
    """
    read = {field.name for field in fields(agent.actor)} - {field.name for field in fields(OptimizerConfig)}
    read -= REFERENCE_KEYS
    parts: list[tuple[str, Any, Any, Collection[str]]] = [("algorithm", agent.algorithm, config.algorithm, ())]
    if agent.actor.kind is config.actor.kind:
        parts += [("actor", agent.actor, config.actor, read), ("critic", agent.critic, config.critic, ())]
    for part, own, common, free in parts:
        for field in fields(own):
            value = getattr(own, field.name)
            if field.name not in free and value != getattr(common, field.name):
                raise ConfigError(
                    f"task.agents.{name}.{part}.{field.name}={_format_value(value)}",
                    f"has no effect: task.agents.{name}.frozen=true, and frozen agents are not trained",
                    "remove it, or set frozen=false",
                )


def _format_value(value: Any) -> str:
    return "null" if value is None else str(getattr(value, "value", value))
