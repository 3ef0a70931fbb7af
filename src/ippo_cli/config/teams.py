"""Whose weights an agent has: the one place that knows who shares them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import AgentConfig, Config, SharedPolicyConfig

SHARED = "shared"  # the group of all agents where none is named
RESERVED = ("eval", "time", "perf", "iteration")  # what stands in metric names where an agent or a group may


def members(config: Config) -> dict[str, tuple[str, ...]]:
    """The agents of each set of trained weights, in the task's order, by the name that the weights go by.

    That name stands in metrics, in the folders of checkpoints and initial weights, and in errors. It is the agent's
    own where nobody else has its weights.
    """
    team, agents = config.team, config.task.agents
    groups: Mapping[str, Sequence[str]] = {}
    if isinstance(team, SharedPolicyConfig):
        groups = team.groups or {SHARED: list(agents)}
    group_of = {name: group for group, names in groups.items() for name in names}
    found: dict[str, list[str]] = {}
    for name in agents:
        found.setdefault(group_of.get(name, name), []).append(name)
    return {holder: tuple(names) for holder, names in found.items()}


def holders(config: Config) -> dict[str, str]:
    """By agent, the name that its weights go by."""
    return {agent: holder for holder, agents in members(config).items() for agent in agents}


def refuse_unusable_name(where: str, name: str) -> None:
    """Raise `ConfigError` for an agent's or a group's name that cannot stand in metric names and folders."""
    if not re.fullmatch(r"[A-Za-z]\w*", name) or name in RESERVED:
        raise ConfigError(
            where,
            "is used in metric names and folders",
            "use letters, digits and '_', and none of " + " ".join(RESERVED),
        )


def check_team(config: Config) -> None:
    """Raise `ConfigError` for groups that cannot be, and for agents of one group whose settings differ."""
    team, agents = config.team, config.task.agents
    if not isinstance(team, SharedPolicyConfig):
        return
    if not team.groups and SHARED in agents:
        raise ConfigError(
            "team.groups={}",
            f"puts all agents into a group named {SHARED}, and one of them has that name",
            f"name the group: team.groups={{team:[{','.join(agents)}]}}",
        )
    _check_groups(team.groups, list(agents))
    for group, names in members(config).items():
        for name in names[1:]:
            _refuse_unequal(group, names[0], agents[names[0]], name, agents[name])


def _check_groups(groups: Mapping[str, Sequence[str]], agents: Sequence[str]) -> None:
    group_of: dict[str, str] = {}
    for group, names in groups.items():
        where, written = f"team.groups.{group}", f"team.groups.{group}=[{','.join(map(str, names))}]"
        refuse_unusable_name(where, group)
        if group in agents:
            raise ConfigError(where, "has the name of an agent", "give the group another name")
        if not names:
            raise ConfigError(written, "names nobody", f"name some of {' '.join(agents)}, or leave it out")
        for name in names:
            if name not in agents:
                raise ConfigError(written, f"names {name}, who is no agent", f"there are {' '.join(agents)}")
            if name in group_of:
                raise ConfigError(written, f"names {name}, who is in group {group_of[name]}", "name each agent once")
            group_of[name] = group


# What the agents of a group have as one, and the keys of it where not all. Log-probabilities of all its rows are taken
# at one temperature; how else each of them is sampled is its own.
OF_GROUPS: dict[str, tuple[str, ...]] = {"actor": (), "critic": (), "algorithm": (), "rollout": ("temperature",)}


def _refuse_unequal(group: str, first: str, its: AgentConfig, name: str, own: AgentConfig) -> None:
    """Raise where two agents that are to have one actor and one critic ask for different ones."""
    for part, keys in OF_GROUPS.items():
        one, other = getattr(its, part), getattr(own, part)
        # The kind comes before the keys of kinds.
        for key in keys or sorted((field.name for field in fields(one)), key=lambda key: key != "kind"):
            wanted, value = getattr(one, key), getattr(other, key)
            if wanted != value:
                raise ConfigError(
                    f"task.agents.{name}.{part}.{key}={_shown(value)}",
                    f"differs from {first}'s {_shown(wanted)}, and both are in group {group}, which has one "
                    f"{key if keys else part}",
                    f"set {part}.{key} for all of them, or use another group",
                )


def _shown(value: Any) -> str:
    return "null" if value is None else str(getattr(value, "value", value))
