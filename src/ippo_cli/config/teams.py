"""Whose weights an agent has: the one place that knows who shares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ippo_cli.config.schema import Config, SharedPolicyConfig

SHARED = "shared"  # the group of all agents where none is named


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
