"""How many ranks a run has, and for which devices it is planned."""

from __future__ import annotations

from dataclasses import fields

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, Mode


def world_size(config: Config, external_ranks: int | None) -> int:
    """Ranks of the run that is started or planned; `outside`: how many another launcher has started."""
    return config.plan.devices or external_ranks or config.launch.processes * config.launch.nodes


def check_plan(config: Config) -> None:
    """Raise `ConfigError` for figures that are incomplete, or that nothing would read."""
    plan_values = {part.name: getattr(config.plan, part.name) for part in fields(config.plan)}
    stated = [f"plan.{name}={value}" for name, value in plan_values.items() if value is not None]
    missing = [f"plan.{name}" for name, value in plan_values.items() if value is None]
    if stated and missing:
        raise ConfigError(
            stated[0],
            f"is one of several figures that are given together, and {missing[0]} is null",
            "start from plan=h100 or plan=a100",
        )
    if stated and config.mode is not Mode.plan:
        raise ConfigError(
            stated[0],
            "says what to plan for, and training runs on what is here",
            "add mode=plan, or leave plan= out and use launch.processes",
        )
