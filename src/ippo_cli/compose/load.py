"""Composition of YAML and overrides to a typed `Config`; other modules do not use OmegaConf nodes."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from ippo_cli.compose.former_keys import convert_config
from ippo_cli.compose.mix import build_parts, complete_parts
from ippo_cli.compose.path_keys import AGENTS_KEY, absolute_path, dump_yaml, load_yaml, make_absolute
from ippo_cli.compose.resolvers import register_resolvers
from ippo_cli.compose.run_weights import replace_runs
from ippo_cli.compose.searchpath import BUILTIN_OPTIONS, SEARCH_PATH, is_of_file, register_option_files
from ippo_cli.compose.validate import WrongConfig, sort_keys, to_plain, validate_values
from ippo_cli.config import schema
from ippo_cli.config.errors import ConfigError, UnknownKey
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


def register_options() -> None:
    """Register option files of users, and the functions of `conf/`, with Hydra."""
    register_option_files()
    register_resolvers()


def compose_node(overrides: Sequence[str]) -> DictConfig:
    """Compose without `hydra.main` (resume lookup, diagnosis, tests)."""
    if any(text.startswith(SEARCH_PATH) for text in overrides):  # files of users may change
        return _compose(tuple(overrides))
    return copy.deepcopy(_compose_builtin(tuple(overrides)))


def _compose(overrides: Sequence[str]) -> DictConfig:
    register_options()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        node = compose("config", overrides=list(overrides))
    check_agents(node, overrides)
    return node


_compose_builtin = lru_cache(maxsize=64)(_compose)  # a command composes the same several times, and each takes 0.2 s


def check_agents(node: DictConfig, overrides: Sequence[str]) -> None:
    """Raise `UnknownKey` for a key of an agent that neither a file nor `+task.agents.NAME` has made."""
    for name, agent in _agents(node).items():
        own = rf"{re.escape(AGENTS_KEY)}(\.{re.escape(name)}[.=]|=.*\b{re.escape(name)}\b)"
        is_added = any(re.match(rf"\+{{1,2}}{own}", text) for text in overrides)
        is_added = is_added or not isinstance(agent, DictConfig) or is_of_file(agent)  # pydantic refuses other values
        if not is_added or not re.fullmatch(r"[A-Za-z]\w*", name):
            typed = (text for text in overrides if re.match(rf"\+{{0,2}}{own}", text))
            raise UnknownKey(next(typed, f"{AGENTS_KEY}.{name}"))


def load_config(overrides: Sequence[str] = ()) -> schema.Config:
    """Compose a typed configuration from overrides."""
    return build_config(resolve_config(compose_node(overrides)))


def resolve_config(node: DictConfig) -> dict[str, Any]:
    """Plain values of a run: interpolations resolved, each agent's overrides merged over its groups; of valid types."""
    plain = to_plain(validate_values(schema.Config, merge_agents(node)))
    complete_parts(plain["reward"], config_dir() / "reward")
    _complete_reward_models(plain["reward"])
    check_secrets(plain)
    plain = _make_paths_absolute(plain)
    replace_runs(plain, from_yaml)
    return plain


def merge_agents(node: DictConfig) -> dict[str, Any]:
    """Plain values of a run as they are written, with each agent's overrides merged over its groups."""
    for group in GROUPS:
        if not isinstance(node[group], DictConfig):
            raise ConfigError(f"{group}={node[group]}", "must be a mapping", f"set its keys: {group}.KEY=VALUE")
    _check_kinds(node)
    agents: dict[str, Any] = {}
    for name, agent in _agents(node).items():
        if not isinstance(agent, DictConfig):
            agents[name] = agent
            continue
        own = {str(leaf): _read_value(agent, leaf) for leaf in agent if leaf not in PER_AGENT}
        if node.task.kind == PROGRAM:
            own.setdefault("template", TEMPLATE)
        if "template" not in own:
            raise ConfigError(f"task.agents.{name}.template", "is missing", "set the prompt, such as '{question}'")
        agents[name] = own | _agent_groups(node, agent, name)
    bare = copy.deepcopy(node)
    with open_dict(bare):
        bare.pop("hydra", None)
        bare.pop("sweep", None)
        if isinstance(node.task.agents, DictConfig):
            bare.task.agents = {}  # the values of agents are in `agents`
    plain = _to_container(bare)
    if isinstance(plain["task"]["agents"], dict):
        plain["task"]["agents"] = agents
    return plain


def _agents(node: DictConfig) -> dict[str, Any]:
    """The agents of a composition by name, with their own values only."""
    agents = node.task.get("agents") if isinstance(node.task, DictConfig) else None
    return {str(name): agents[name] for name in agents} if isinstance(agents, DictConfig) else {}


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


def schema_of(group: str, values: Mapping[Any, Any]) -> type[Any]:
    """The schema class of a group with these values."""
    kinds = schema.OPTIONS[group]
    return kinds.get(schema.SINGLE) or kinds[str(values["kind"])]


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
    """Format a composition as YAML for `--cfg job`, in the order of the schema."""
    plain = OmegaConf.to_container(node, resolve=resolve)
    return dump_yaml(sort_keys(schema.Composition, plain))


def _check_kinds(node: DictConfig) -> None:
    """Raise `ConfigError` for a kind that does not exist, and for a server as the actor of all agents."""
    for group, kinds in KINDS.items():
        kind = str(node[group].get("kind"))
        if kind not in kinds:
            raise ConfigError(f"{group}.kind={kind}", "is not known", "use one of " + " ".join(kinds))
        if group == "actor" and kind == schema.ActorKind.server.value:
            raise ConfigError(
                "actor=server",
                "is the server of one frozen agent, and this names one for all agents, of which none could be trained",
                "use task.agents.NAME.actor=server",
            )


def _agent_groups(node: DictConfig, agent: DictConfig, name: str) -> dict[str, Any]:
    """One agent's values of every group: the run's values with the agent's overrides.

    If its actor has another kind than the run's, its actor and critic start from the options of their kinds instead of
    the run's values; if only its critic has another kind, only its critic does.
    """
    own = {group: agent.get(group, {}) for group in PER_AGENT}
    if wrong := {group: value for group, value in own.items() if not isinstance(value, DictConfig | dict)}:
        return wrong
    kinds = {group: str(own[group].get("kind", node[group].kind)) for group in KINDS_PER_AGENT}
    if kinds["actor"] == schema.ActorKind.server.value:  # nothing of it is trained
        _check_has_no_critic(own["critic"], name)
        kinds["critic"] = schema.CriticKind.none.value
    others = [group for group, kind in kinds.items() if kind != node[group].kind and kind in KINDS[group]]
    if others:
        node = copy.deepcopy(node)
        options = _compose_kinds(node.task.kind, kinds)
        for group in KINDS_PER_AGENT if "actor" in others else others:
            node[group] = options[group]
    found: dict[str, Any] = {}
    for group in PER_AGENT:
        overrides = {leaf: own[group][leaf] for leaf in own[group]}
        merged = OmegaConf.merge(node[group], overrides)
        if group == "actor" and overrides:
            node = copy.deepcopy(node)
            node.actor = merged  # interpolations of the critic, such as the dtype, refer to this agent's actor
        if group in KEYS_PER_AGENT:  # the others are the run's: an agent at a server has no value of some defaults
            known = {leaf.name for leaf in fields(KEYS_PER_AGENT[group])} | set(overrides)
            found[group] = {leaf: _read_value(merged, leaf) for leaf in merged if leaf in known}
        else:
            found[group] = _to_container(merged)
    return found


def _check_has_no_critic(critic: Mapping[Any, Any], name: str) -> None:
    """Raise `ConfigError` for a critic of an agent at a server."""
    if critic.get("kind", schema.CriticKind.none.value) != schema.CriticKind.none.value:
        where = f"task.agents.{name}"
        raise ConfigError(
            f"{where}.critic.kind={critic['kind']}",
            f"has no effect: {where}.actor=server is not trained",
            "remove it",
        )


def _compose_kinds(task: str, kinds: Mapping[str, str]) -> DictConfig:
    """Compose options of these kinds; defaults of a local model depend on the environment."""
    environment = [f"task={task}"] if (config_dir() / "base" / "actor" / f"{task}.yaml").is_file() else []
    return compose_node([*environment, *(f"{group}={kind}" for group, kind in kinds.items())])


def _read_value(node: Any, leaf: Any) -> Any:
    """A leaf's plain value."""
    try:
        value = node[leaf]
        if OmegaConf.is_config(value):
            return OmegaConf.to_container(value, resolve=True, throw_on_missing=True)
        return value
    except OmegaConfBaseException as error:
        raise _unusable_value_error(error) from error


def _unusable_value_error(error: OmegaConfBaseException) -> ConfigError:
    return WrongConfig([ConfigError(str(error.full_key), "has no usable value", str(error).splitlines()[0])])


def _to_container(node: Any) -> dict[str, Any]:
    try:
        plain = OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise _unusable_value_error(error) from error
    assert isinstance(plain, dict)
    return plain  # type: ignore[return-value]
