"""Whose weights an agent has: the one place that knows who shares them."""

from __future__ import annotations

from ippo_cli.config.schema import Config


def members(config: Config) -> dict[str, tuple[str, ...]]:
    """The agents of each set of trained weights, in the task's order, by the name that the weights go by.

    That name stands in metrics, in the folders of checkpoints and initial weights, and in errors. It is the agent's
    own where nobody else has its weights.
    """
    return {name: (name,) for name in config.task.agents}


def holders(config: Config) -> dict[str, str]:
    """By agent, the name that its weights go by."""
    return {agent: holder for holder, agents in members(config).items() for agent in agents}
