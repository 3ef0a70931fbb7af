"""`launch.placement`: the ranks that hold each model, and the devices of inference servers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, VllmMode, VllmRolloutConfig
from ippo_cli.config.text import closest_hint
from ippo_cli.config.vllm import devices_per_server

KEY = "launch.placement"
ACTOR, CRITIC, REFERENCE, REWARD, ROLLOUT = "actor", "critic", "reference", "reward", "rollout"
AGENT_COMPONENTS = (ACTOR, CRITIC, REFERENCE)
COMPONENTS = (*AGENT_COMPONENTS, REWARD, ROLLOUT)
RANGE = re.compile(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?")
EXAMPLES = "all, 3, 0-3 or '0-1,4'"


@dataclass(frozen=True, slots=True)
class Placement:
    """Ranks of each component."""

    ranks: Mapping[str, tuple[int, ...]]
    """By `AGENT.actor`, `AGENT.critic` and `AGENT.reference` for each agent, and `reward`. Agents without a critic or
    a reference have the actor's ranks there."""
    rollout_devices: tuple[int, ...] = ()
    """Numbers of the devices of every machine that servers of `rollout=vllm` use; empty: those of the ranks."""

    def of(self, agent: str, component: str) -> tuple[int, ...]:
        """The ranks of a component, in ascending order."""
        return self.ranks[REWARD if component == REWARD else f"{agent}.{component}"]


@dataclass(frozen=True, slots=True)
class _Entry:
    """One key of the mapping."""

    key: str
    value: Any
    targets: tuple[tuple[str | None, str], ...]  # agent (None: all) and component

    @property
    def setting(self) -> str:
        return f"{KEY}.{self.key}={self.value}"


def read_placement(config: Config, world_size: int) -> Placement:
    """The placement on `world_size` ranks. Raises `ConfigError` for an entry that cannot be read.

    Without an entry, an actor and a reward model are on all ranks, a critic and a reference on those of their actor.
    """
    everywhere = tuple(range(world_size))
    entries = _read_entries(config)
    named = {target: entry for entry in entries for target in entry.targets}

    def find_ranks(agent: str | None, component: str, default: tuple[int, ...]) -> tuple[int, ...]:
        entry = named.get((agent, component)) or named.get((None, component))
        return default if entry is None else _read_ranks(entry, world_size)

    ranks: dict[str, tuple[int, ...]] = {}
    for name in config.task.agents:
        actor = find_ranks(name, ACTOR, everywhere)
        ranks |= {f"{name}.{ACTOR}": actor}
        ranks |= {f"{name}.{component}": find_ranks(name, component, actor) for component in AGENT_COMPONENTS[1:]}
    ranks[REWARD] = find_ranks(None, REWARD, everywhere)
    return Placement(ranks, read_rollout_devices(config))


def read_rollout_ranks(config: Config, world_size: int) -> tuple[int, ...] | None:
    """Ranks that the mapping names for `rollout` without servers; None without an entry. Raises `ConfigError`."""
    entry = _find_rollout(config)
    return None if entry is None or uses_servers(config) else _read_ranks(entry, world_size)


def read_rollout_devices(config: Config) -> tuple[int, ...]:
    """Numbers of the devices of every machine that inference servers use; empty without `rollout` in the placement.

    Raises `ConfigError`.
    """
    if not uses_servers(config):
        return ()
    entry = _find_rollout(config)
    if entry is None:
        return ()
    if entry.value == "all":
        raise ConfigError(
            entry.setting,
            "names no devices",
            f"write the numbers of devices that no rank uses, {_free_devices(config)}",
        )
    return _read_numbers(entry)


def _free_devices(config: Config) -> str:
    """An example of devices for one server beside the ranks of a machine."""
    assert isinstance(config.rollout, VllmRolloutConfig)
    size, plan = devices_per_server(config.rollout.vllm), config.plan
    first = config.launch.processes
    if plan.devices is not None and plan.per_machine is not None:
        first = max(min(plan.devices, plan.per_machine) - size, 0)
    return f"such as {format_ranks(range(first, first + size))}"


def _find_rollout(config: Config) -> _Entry | None:
    return next((entry for entry in _read_entries(config) if (None, ROLLOUT) in entry.targets), None)


def uses_servers(config: Config) -> bool:
    """Whether responses are sampled by server processes."""
    return isinstance(config.rollout, VllmRolloutConfig) and config.rollout.vllm.mode is VllmMode.server


def placed_components(config: Config) -> dict[tuple[str | None, str], str]:
    """The setting of each agent (None: all) and component that the configuration names, for errors."""
    return {target: entry.setting for entry in _read_entries(config) for target in entry.targets}


def format_ranks(ranks: Sequence[int]) -> str:
    """Ranks as the configuration writes them: `0-3,6`."""
    parts = []
    for _, run in groupby(enumerate(ranks), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        parts.append(str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}")
    return ",".join(parts)


def _read_entries(config: Config) -> list[_Entry]:
    """The entries of the mapping. Raises `ConfigError` for unknown names, and names with several entries."""
    entries = [_Entry(key, value, ()) for key, value in config.launch.placement.items()]
    known: dict[tuple[str | None, str], str] = {}
    result = []
    for entry in entries:
        targets = tuple(_read_targets(config, entry))
        for target in targets:
            if target in known:
                raise ConfigError(
                    entry.setting, f"places {_format_target(target)} twice, also in {known[target]}", "name it once"
                )
            known[target] = entry.key
        result.append(_Entry(entry.key, entry.value, targets))
    return result


def _read_targets(config: Config, entry: _Entry) -> Iterator[tuple[str | None, str]]:
    agents = config.task.agents
    for part in (text.strip() for text in entry.key.split(",")):
        agent, dot, component = part.rpartition(".")
        if dot and agent not in agents:
            raise ConfigError(
                entry.setting,
                f"names {agent}, which is not an agent{closest_hint(agent, list(agents))}",
                f"use one of {' '.join(agents)}, or {component} for all agents",
            )
        usable = AGENT_COMPONENTS if dot else COMPONENTS
        if component not in usable:
            rule = f"names {component or 'no component'}, which is not a component{closest_hint(component, usable)}"
            if component in COMPONENTS:
                rule = f"names {component} of one agent, and all agents have the same"
            example = f", or AGENT.{ACTOR}" if not dot else ""
            raise ConfigError(entry.setting, rule, f"use one of {' '.join(usable)}{example}")
        yield (agent if dot else None), component


def _read_ranks(entry: _Entry, world_size: int) -> tuple[int, ...]:
    """The ranks of an entry. Raises `ConfigError` if one does not exist."""
    if entry.value == "all":
        return tuple(range(world_size))
    ranks = _read_numbers(entry)
    if ranks[-1] >= world_size:
        raise ConfigError(
            entry.setting,
            f"names rank {ranks[-1]}, and this run has {world_size} (launch.processes times launch.nodes)",
            f"use ranks from 0 to {world_size - 1}, or more processes",
        )
    return ranks


def _read_numbers(entry: _Entry) -> tuple[int, ...]:
    """The numbers of an entry such as `0-1,4`, in ascending order. Raises `ConfigError`."""
    text = str(entry.value)
    found: list[int] = []
    for part in text.split(","):
        match = RANGE.fullmatch(part)
        if match is None or isinstance(entry.value, (list, dict, bool)):
            rule = "is empty" if not text.strip() or entry.value is None else "is not a set of numbers"
            raise ConfigError(entry.setting, rule, f"write {EXAMPLES}")
        first, last = int(match[1]), int(match[2] or match[1])
        if first > last:
            raise ConfigError(entry.setting, f"has the reversed range {part.strip()}", f"write {last}-{first}")
        found += range(first, last + 1)
    if len(set(found)) < len(found):
        twice = next(number for number in found if found.count(number) > 1)
        raise ConfigError(entry.setting, f"names {twice} twice", "name each number once")
    return tuple(sorted(found))


def _format_target(target: tuple[str | None, str]) -> str:
    agent, component = target
    return component if agent is None else f"{agent}.{component}"
