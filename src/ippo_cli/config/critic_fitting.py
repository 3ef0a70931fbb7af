"""`mode=critic`: critics are fitted to the returns of policies that stay as they are."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, CriticKind, Mode
from ippo_cli.config.served_agents import local_agents

CRITIC_METRIC = "sampled/explained_variance"
"""The evaluation metric that ranks checkpoints with `mode=critic`: mean over the agents with values."""


def policy_warmup(config: Config) -> int:
    """Number of first iterations in which policies keep their weights; with `mode=critic`, all."""
    return sys.maxsize if config.mode is Mode.critic else config.algorithm.critic_warmup


def primary_metric(config: Config) -> str:
    """The evaluation metric that ranks checkpoints and jobs, without `eval/`."""
    return CRITIC_METRIC if config.mode is Mode.critic else config.task.primary_metric


def stored_primary_metric(plain: Mapping[str, Any]) -> str | None:
    """The same of a saved configuration; None if it has none."""
    if plain.get("mode") == Mode.critic.value:
        return CRITIC_METRIC
    task = plain.get("task")
    metric = task.get("primary_metric") if isinstance(task, Mapping) else None
    return None if metric is None else str(metric)


def check_critic_mode(config: Config) -> None:
    """Raise `ConfigError` for `mode=critic` without a critic, or with held-out rows that are not sampled."""
    if config.mode is not Mode.critic:
        return
    for name, agent in local_agents(config).items():
        if not agent.frozen and agent.critic.kind is CriticKind.none:
            where = "" if config.critic.kind is CriticKind.none else f"task.agents.{name}."
            raise ConfigError(
                f"{where}critic=none",
                "has no values to fit with mode=critic",
                "use critic=separate and an algorithm with a critic, such as algorithm=ppo",
            )
    if not config.evaluation.sampled:
        raise ConfigError(
            "evaluation.sampled=false",
            "leaves mode=critic without held-out responses to measure the critic on",
            "use evaluation.sampled=true",
        )
