"""The range of scores, which a confidence sequence of their mean needs."""

from __future__ import annotations

from ippo_cli.config.schema import Config

UNIT_REWARDS = ("exact_match", "format", "gsm8k", "length", "math")
"""Rewards from 0 to 1."""
UNIT_PARTS = {
    "exact_match": ("exact", "characters"),
    "gsm8k": ("strict", "flexible"),
    "number": ("right", "near", "bare"),
    "code": ("all", "share"),
}
"""Parts from 0 to 1 that a reward reports."""


def find_score_range(config: Config) -> tuple[float, float] | None:
    """The lowest and highest possible value of `task.primary_metric`; None if the configuration does not bound it."""
    metric = config.task.primary_metric.partition("/")[2]
    kind = config.reward.kind
    if "pass@" in metric or metric in UNIT_PARTS.get(kind, ()):
        return 0.0, 1.0
    weights = [(agent.reward.team_weight, agent.reward.agent_weight) for agent in config.task.agents.values()]
    is_mean = all(min(pair) >= 0 and sum(pair) == 1 for pair in weights)
    return (0.0, 1.0) if metric == "score" and kind in UNIT_REWARDS and is_mean else None
