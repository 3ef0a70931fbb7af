"""Number of ranks of a run, and checks of `plan=`."""

from __future__ import annotations

from dataclasses import fields

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.placement import read_rollout_devices
from ippo_cli.config.schema import Config, Mode


def world_size(config: Config, external_ranks: int | None) -> int:
    """Ranks of the run that is started or planned; `external_ranks`: ranks started by an external launcher."""
    if config.plan.devices is not None:
        return config.plan.devices - count_machines(config) * len(read_rollout_devices(config))
    return external_ranks or config.launch.processes * config.launch.nodes


def count_machines(config: Config) -> int:
    """Machines of the run that is started or planned."""
    if config.plan.devices is None or config.plan.per_machine is None:
        return config.launch.nodes
    return -(-config.plan.devices // config.plan.per_machine)


def ranks_per_machine(config: Config, world_size: int) -> int | None:
    """The most ranks on one machine; None if an external launcher decides it."""
    if config.plan.devices is None and world_size != config.launch.processes * config.launch.nodes:
        return None
    return -(-world_size // count_machines(config))


def check_plan(config: Config) -> None:
    """Raise `ConfigError` if `plan.*` is incomplete, or set without mode=plan."""
    values = {part.name: getattr(config.plan, part.name) for part in fields(config.plan)}
    stated = [f"plan.{name}={value}" for name, value in values.items() if value is not None]
    missing = [f"plan.{name}" for name, value in values.items() if value is None]
    if stated and missing:
        raise ConfigError(
            stated[0],
            f"must be set together with the other keys of plan, and {missing[0]} is null",
            "start from plan=h100 or plan=a100",
        )
    if stated and config.mode is not Mode.plan:
        raise ConfigError(
            stated[0],
            "has an effect with mode=plan only",
            "add mode=plan, or remove plan= and use launch.processes",
        )
