"""Composition of YAML and overrides to a typed `Config`; other modules do not use OmegaConf nodes."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ippo_cli.compose.former_keys import convert_config
from ippo_cli.compose.mix import build_parts, complete_parts
from ippo_cli.compose.path_keys import absolute_path, dump_yaml, load_yaml, make_absolute
from ippo_cli.compose.resolvers import register_resolvers
from ippo_cli.compose.run_weights import replace_runs
from ippo_cli.compose.searchpath import BUILTIN_OPTIONS, register_option_files
from ippo_cli.compose.validate import validate_values
from ippo_cli.config import schema
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.leaves import iter_leaves as iter_leaves
from ippo_cli.config.programs import PROGRAM, TEMPLATE
from ippo_cli.config.secrets import check_secrets, mask_secrets, restore_secrets

# The groups of a run: those with several kinds, with the schema of each kind, and those with a single schema.
GROUPS = [field.name for field in fields(schema.Config) if field.name in schema.OPTIONS]
KINDS = {group: schema.OPTIONS[group] for group in GROUPS if schema.SINGLE not in schema.OPTIONS[group]}
SINGLE_SCHEMAS = {group: schema.OPTIONS[group][schema.SINGLE] for group in GROUPS if group not in KINDS}
# Groups that agents may override: all keys and the kind (KINDS_PER_AGENT), or some keys (KEYS_PER_AGENT).
_AGENT_GROUPS: dict[str, type[Any]] = {
    name: hint
    for name, hint in get_type_hints(schema.AgentConfig).items()
    if isinstance(hint, type) and is_dataclass(hint)
}
KINDS_PER_AGENT = tuple(group for group, cls in _AGENT_GROUPS.items() if "kind" in get_type_hints(cls))
KEYS_PER_AGENT: dict[str, type[Any]] = {
    group: cls for group, cls in _AGENT_GROUPS.items() if group not in KINDS_PER_AGENT
}
PER_AGENT = (*KINDS_PER_AGENT, *KEYS_PER_AGENT)


def config_dir() -> Path:
    """The folder of YAML groups: in the installed package, else in the checkout."""
    return BUILTIN_OPTIONS


def register_schemas() -> None:
    """Register all schemas with Hydra, so that YAML files can list them first, and register user option files."""
    register_option_files()
    register_resolvers()
    for name, node in schema.SCHEMAS.items():
        _register_schema(name, node)


@cache
def _register_schema(name: str, node: type[Any]) -> None:
    ConfigStore.instance().store(group="schema", name=name, node=node)


def compose_node(overrides: Sequence[str]) -> DictConfig:
    """Compose without `hydra.main` (resume lookup, diagnosis, tests)."""
    register_schemas()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def load_config(overrides: Sequence[str] = ()) -> schema.Config:
    """Compose a typed configuration from overrides."""
    return build_config(resolve_config(compose_node(overrides)))


def resolve_config(node: DictConfig) -> dict[str, Any]:
    """Plain values of a run: interpolations resolved, each agent's overrides merged over its groups."""
    _check_kinds(node)
    agents: dict[str, Any] = {}
    for name, agent in node.task.agents.items():
        if OmegaConf.is_missing(agent, "template") and node.task.kind == PROGRAM:
            agent.template = TEMPLATE
        if OmegaConf.is_missing(agent, "template"):
            raise ConfigError(f"task.agents.{name}.template", "is missing", "set the prompt, such as '{question}'")
        own = {leaf: _read_value(agent, leaf) for leaf in agent if leaf not in PER_AGENT}
        agents[str(name)] = own | _agent_groups(node, agent, name)
    bare = copy.deepcopy(node)
    with open_dict(bare):
        bare.pop("hydra", None)
        bare.pop("sweep", None)
        bare.task.agents = {}  # partial groups of agents have missing values; they are added resolved below
    plain = _to_container(bare)
    plain["task"]["agents"] = agents
    complete_parts(plain["reward"], config_dir() / "reward")
    _complete_reward_models(plain["reward"])
    check_secrets(plain)
    plain = _make_paths_absolute(plain)
    replace_runs(plain)
    return plain


def _make_paths_absolute(value: Any, key: str = "") -> Any:
    """Make all paths absolute, so that a run can be resumed and evaluated from any folder."""
    if isinstance(value, dict):
        return {name: _make_paths_absolute(part, f"{key}.{name}" if key else str(name)) for name, part in value.items()}
    return make_absolute(key, value)


def _complete_reward_models(reward: dict[str, Any]) -> None:
    """Make folders of reward models absolute, in place; a judge's model is a name at a server."""
    for part in (reward, *(reward.get("parts") or {}).values()):
        if part["kind"] == "model" and part.get("model"):
            part["model"] = absolute_path(part["model"])


def build_config(plain: dict[str, Any]) -> schema.Config:
    """Build dataclasses from plain values (a resolved composition, or a run's `config.yaml`)."""
    config = validate_values(schema.Config, plain)
    if isinstance(config.reward, schema.MixRewardConfig):
        config.reward.parts = build_parts(config.reward, _build_reward)
    return config


def _build_reward(plain: dict[str, Any], where: str) -> schema.RewardConfig:
    kind = str(plain.get("kind"))
    if kind not in KINDS["reward"]:
        raise ConfigError(f"{where}.kind={kind}", "is not known", "use one of " + " ".join(KINDS["reward"]))
    return validate_values(KINDS["reward"][kind], plain, f"{where}.")


def build_sweep_config(node: DictConfig) -> schema.SweepConfig:
    """The sweep of a composition."""
    plain = _to_container(node.sweep)
    return validate_values(schema.OPTIONS["sweep"][str(plain["kind"])], plain, "sweep.")


def to_yaml(plain: dict[str, Any]) -> str:
    """Format a run's `config.yaml`; secrets are replaced by names of variables."""
    return dump_yaml(mask_secrets(plain))


def from_yaml(path: Path, *, with_secrets: bool = False) -> schema.Config:
    """Read a run's configuration; nothing in it is instantiated or interpolated.

    `with_secrets`: replace names of variables by the secrets, for the run itself.
    """
    plain = read_run_config(path)
    return build_config(restore_secrets(plain) if with_secrets else plain)


def read_run_config(path: Path) -> dict[str, Any]:
    """Read the plain values of a run's `config.yaml`, with present names of keys and without removed ones."""
    try:
        plain = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise ConfigError(str(path), "cannot be read", str(error).splitlines()[0]) from error
    if not isinstance(plain, dict):
        raise ConfigError(str(path), "is not a configuration", "use the config.yaml of a run")
    return convert_config(plain)


def format_composition(node: DictConfig, *, resolve: bool) -> str:
    """Format a composition as YAML for `--cfg job`, without missing values of agents."""
    plain = OmegaConf.to_container(node, resolve=resolve, enum_to_str=True)
    return OmegaConf.to_yaml(OmegaConf.create(_drop_missing(plain)))


def read_kind(node: DictConfig) -> str:
    """The kind of a group, which is an enumeration in some schemas."""
    return str(getattr(node.kind, "value", node.kind))


def _check_kinds(node: DictConfig) -> None:
    """Raise `ConfigError` if only `kind` was changed, because the group's other keys belong to another kind."""
    for group, kinds in KINDS.items():
        kind = read_kind(node[group])
        if kind not in kinds:
            raise ConfigError(f"{group}.kind={kind}", "is not known", "use one of " + " ".join(kinds))
        if group == "actor" and kind == schema.ActorKind.server:
            raise ConfigError(
                "actor=server",
                "is the server of one frozen agent, and this names one for all agents, of which none could be trained",
                "use task.agents.NAME.actor=server",
            )
        if OmegaConf.get_type(node[group]) not in (kinds[kind], dict):
            options = [file.stem for file in sorted((config_dir() / group).glob("*.yaml"))]
            remedy = f"use {group}={kind}" if kind in options else f"use one of {' '.join(options)}"
            raise ConfigError(f"{group}.kind={kind}", "cannot be set alone: it depends on the option", remedy)


def _drop_missing(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    present = {key: _drop_missing(value) for key, value in plain.items() if value != "???"}
    return {key: value for key, value in present.items() if value != {} or plain[key] == {}}


def _agent_groups(node: DictConfig, agent: DictConfig, name: str) -> dict[str, Any]:
    """One agent's values of every group: the run's values with the agent's overrides.

    If its actor has another kind than the run's, its actor and critic start from the options of their kinds instead of
    the run's values; if only its critic has another kind, only its critic does.
    """
    kinds = {group: _agent_kind(agent[group], node[group]) for group in KINDS_PER_AGENT}
    if kinds["actor"] == schema.ActorKind.server:  # nothing of it is trained
        _check_has_no_critic(agent, name)
        kinds["critic"] = schema.CriticKind.none.value
    others = [group for group, kind in kinds.items() if kind != read_kind(node[group])]
    if others:
        node = copy.deepcopy(node)
        options = _compose_kinds(node.task.kind, kinds)
        for group in KINDS_PER_AGENT if "actor" in others else others:
            node[group] = options[group]
    found: dict[str, Any] = {}
    for group in PER_AGENT:
        own = _merge_group(node, group, agent[group], name)
        if group == "actor" and any(not OmegaConf.is_missing(agent.actor, leaf) for leaf in agent.actor):
            node = copy.deepcopy(node)
            node.actor = own  # interpolations of the critic, such as the dtype, refer to this agent's actor
        if group in KEYS_PER_AGENT:  # the others are the run's: an agent at a server has no value of some defaults
            known = {leaf.name for leaf in fields(KEYS_PER_AGENT[group])}
            found[group] = {leaf: _read_value(own, leaf) for leaf in own if leaf in known}
        else:
            found[group] = _to_container(own)
    return found


def _check_has_no_critic(agent: DictConfig, name: str) -> None:
    """Raise `ConfigError` for a critic of an agent at a server."""
    if not OmegaConf.is_missing(agent.critic, "kind") and read_kind(agent.critic) != schema.CriticKind.none:
        where = f"task.agents.{name}"
        raise ConfigError(
            f"{where}.critic.kind={read_kind(agent.critic)}",
            f"has no effect: {where}.actor=server is not trained",
            "remove it",
        )


def _compose_kinds(task: str, kinds: Mapping[str, str]) -> DictConfig:
    """Compose options of these kinds; defaults of a local model depend on the environment."""
    environment = [f"task={task}"] if (config_dir() / "base" / "actor" / f"{task}.yaml").is_file() else []
    return compose_node([*environment, *(f"{group}={kind}" for group, kind in kinds.items())])


def _agent_kind(own: DictConfig, shared: DictConfig) -> str:
    """An agent's kind of a group: its own, else the run's."""
    return read_kind(shared if OmegaConf.is_missing(own, "kind") else own)


def _merge_group(node: DictConfig, group: str, own: DictConfig, agent: str) -> DictConfig:
    """Merge one agent's overrides over a group's values."""
    overrides = {leaf: own[leaf] for leaf in own if not OmegaConf.is_missing(own, leaf)}
    for leaf, value in overrides.items():
        if leaf not in node[group]:
            raise ConfigError(
                f"task.agents.{agent}.{group}.{leaf}={value}",
                f"is not a key of {group}={read_kind(node[group])}",
                "it has: " + " ".join(node[group]),
            )
    return OmegaConf.merge(node[group], overrides)  # type: ignore[return-value]


def _read_value(node: DictConfig, leaf: Any) -> Any:
    """A leaf's plain value: enumerations as their names, lists and mappings of Python."""
    try:
        value = node[leaf]
        if OmegaConf.is_config(value):
            return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
        return value.name if isinstance(value, Enum) else value
    except OmegaConfBaseException as error:
        raise _unusable_value_error(error) from error


def _unusable_value_error(error: OmegaConfBaseException) -> ConfigError:
    return ConfigError(str(error.full_key), "has no usable value", str(error).splitlines()[0])


def _to_container(node: Any) -> dict[str, Any]:
    try:
        plain = OmegaConf.to_container(node, resolve=True, enum_to_str=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise _unusable_value_error(error) from error
    assert isinstance(plain, dict)
    return plain  # type: ignore[return-value]
