"""From YAML and overrides to a checked `Config`: the only place where OmegaConf nodes exist."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException
from yaml import YAMLError

from ippo_cli.config import schema
from ippo_cli.config.aliases import find_answer
from ippo_cli.config.arithmetic import fit_mini_batch
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.mix import complete_parts, typed_parts
from ippo_cli.config.places import absolute_place, dump_yaml, load_yaml, make_absolute
from ippo_cli.config.searchpath import OWN_OPTIONS, register_option_files
from ippo_cli.config.secrets import kept, refuse_secrets, restored

T = TypeVar("T")

# Which schema a group's values follow, by the group's `kind`.
KINDS: dict[str, dict[str, type[Any]]] = {
    "task": {
        "sorting": schema.SortingConfig,
        "jsonl": schema.JsonlConfig,
        "probe_letters": schema.LettersConfig,
        "probe_grid": schema.GridConfig,
        "signalling": schema.SignallingConfig,
        "relay": schema.RelayConfig,
        "ladder": schema.LadderConfig,
        "gymnasium": schema.GymnasiumConfig,
        "pettingzoo": schema.PettingzooConfig,
        "reasoning_gym": schema.ReasoningGymConfig,
        "environment": schema.OwnEnvironmentConfig,
    },
    "actor": {
        "tiny": schema.TinyActorConfig,
        "full": schema.ActorConfig,
        "lora": schema.LoraActorConfig,
        "tiny_lora": schema.TinyLoraActorConfig,
    },
    "critic": {
        "separate": schema.SeparateCriticConfig,
        "centralized": schema.CentralizedCriticConfig,
        "value_head": schema.ValueHeadCriticConfig,
        "adapter": schema.AdapterCriticConfig,
        "none": schema.NoCriticConfig,
    },
    "reward": {
        "code": schema.CodeRewardConfig,
        "code_pair": schema.CodePairRewardConfig,
        "environment": schema.EnvironmentRewardConfig,
        "exact_match": schema.ExactMatchConfig,
        "format": schema.FormatRewardConfig,
        "function": schema.FunctionRewardConfig,
        "grid": schema.GridRewardConfig,
        "gsm8k": schema.Gsm8kRewardConfig,
        "http": schema.HttpRewardConfig,
        "judge": schema.JudgeRewardConfig,
        "length": schema.LengthRewardConfig,
        "math": schema.MathRewardConfig,
        "mix": schema.MixRewardConfig,
        "model": schema.ModelRewardConfig,
        "number": schema.NumberRewardConfig,
    },
    "rollout": {"hf": schema.RolloutConfig},
    "team": {
        "independent": schema.IndependentTeamConfig,
        "shared_policy": schema.SharedPolicyConfig,
        "shared_base": schema.SharedBaseConfig,
    },
    "tracker": {
        "none": schema.TrackerConfig,
        "tensorboard": schema.TrackerConfig,
        "wandb": schema.WandbTrackerConfig,
        "mlflow": schema.MlflowTrackerConfig,
        "wandb_mlflow": schema.WandbMlflowTrackerConfig,
    },
}
# Groups of one schema.
PLAIN: dict[str, type[Any]] = {
    "algorithm": schema.AlgorithmConfig,
    "deepspeed": schema.DeepspeedConfig,
    "checkpoint": schema.CheckpointConfig,
    "evaluation": schema.EvaluationConfig,
    "launch": schema.LaunchConfig,
    "plan": schema.PlanConfig,
}
# Kinds of `sweep=`, which a run knows nothing of.
SWEEPS: dict[str, type[schema.SweepConfig]] = {
    "grid": schema.GridSweepConfig,
    "optuna": schema.OptunaSweepConfig,
    "population": schema.PopulationSweepConfig,
}
# Groups of which an agent has values of its own: of some any kind with all its keys, of others a few keys.
KINDS_PER_AGENT = ("actor", "critic")
KEYS_PER_AGENT: dict[str, type[Any]] = {
    "rollout": schema.SamplingConfig,
    "algorithm": schema.StepsConfig,
    "reward": schema.RewardWeightsConfig,
}
PER_AGENT = (*KINDS_PER_AGENT, *KEYS_PER_AGENT)


def config_dir() -> Path:
    """The folder of YAML groups: inside the installed package, else the checkout's."""
    return OWN_OPTIONS


@cache
def register_schemas() -> None:
    """Make every schema known to Hydra, so that a YAML file can name its own first, and single files as options."""
    register_option_files()
    OmegaConf.register_new_resolver("fit_mini_batch", fit_mini_batch, replace=True)
    store = ConfigStore.instance()
    for name, node in schema.SCHEMAS.items():
        store.store(group="schema", name=name, node=node)


def compose_node(overrides: Sequence[str]) -> DictConfig:
    """Compose without Hydra's application (resume lookup, diagnosis, tests)."""
    register_schemas()
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_dir()), version_base="1.3"):
        return compose("config", overrides=list(overrides))


def load_config(overrides: Sequence[str] = ()) -> schema.Config:
    """The typed configuration that these overrides give."""
    return typed(resolve(compose_node(overrides)))


def resolve(node: DictConfig) -> dict[str, Any]:
    """Plain values of a run: interpolations resolved, each agent's overrides merged over its groups."""
    _refuse_kinds_alone(node)
    agents: dict[str, Any] = {}
    for name, agent in node.task.agents.items():
        if OmegaConf.is_missing(agent, "template"):
            raise ConfigError(f"task.agents.{name}.template", "is missing", "give the prompt, such as '{question}'")
        own = {leaf: _value(agent, leaf) for leaf in agent if leaf not in PER_AGENT}
        agents[str(name)] = own | _groups_of(node, agent, name)
    bare = copy.deepcopy(node)
    with open_dict(bare):
        bare.pop("hydra", None)
        bare.pop("sweep", None)
        bare.task.agents = {}  # their partial groups have missing values: they are replaced, not resolved
    plain = _container(bare)
    plain["task"]["agents"] = agents
    complete_parts(plain["reward"], config_dir() / "reward")
    _complete_reward_models(plain["reward"])
    refuse_secrets(plain)
    return _with_absolute_places(plain)


def _with_absolute_places(value: Any, key: str = "") -> Any:
    """The values with the full paths of files and folders: a run is resumed and evaluated from anywhere."""
    if isinstance(value, dict):
        return {
            name: _with_absolute_places(part, f"{key}.{name}" if key else str(name)) for name, part in value.items()
        }
    return make_absolute(key, value)


def _complete_reward_models(reward: dict[str, Any]) -> None:
    """Give reward models that are folders their full paths, in place; the model of a judge is a name at a server."""
    for part in (reward, *(reward.get("parts") or {}).values()):
        if part["kind"] == schema.RewardKind.model.value and part.get("model"):
            part["model"] = absolute_place(part["model"])


def typed(plain: dict[str, Any]) -> schema.Config:
    """Dataclasses from plain values (a resolved composition, or a run's `config.yaml`)."""
    groups = {name: _typed_group(name, _part(plain, name, "")) for name in (*KINDS, *PLAIN)}
    if isinstance(reward := groups["reward"], schema.MixRewardConfig):
        reward.parts = typed_parts(reward, lambda part, where: _of_kind("reward", part, f"{where}."))
    for name, agent in _part(plain["task"], "agents", "task.").items():
        where = f"task.agents.{name}."
        own = {group: _typed_group(group, _part(agent, group, where), where) for group in KINDS_PER_AGENT}
        for group, cls in KEYS_PER_AGENT.items():
            own[group] = _object(cls, _part(agent, group, where), f"{where}{group}.")
        agent = {leaf: value for leaf, value in agent.items() if leaf not in PER_AGENT}
        groups["task"].agents[name] = schema.AgentConfig(**vars(_object(schema.SpeakerConfig, agent, where)), **own)
    run = _object(schema.RunConfig, {name: value for name, value in plain.items() if name not in groups}, "")
    return schema.Config(**vars(run), **groups)


def typed_sweep(node: DictConfig) -> schema.SweepConfig:
    """The sweep of a composition."""
    plain = _container(node.sweep)
    return _object(SWEEPS[str(plain["kind"])], plain, "sweep.")


def to_yaml(plain: dict[str, Any]) -> str:
    """The text of a run's `config.yaml`, in which secrets are names of variables."""
    return dump_yaml(kept(plain))


def from_yaml(path: Path, *, with_secrets: bool = False) -> schema.Config:
    """The configuration that a run's folder holds. It is data: nothing in it is instantiated or interpolated.

    `with_secrets`: for the run itself, names of variables that hold secrets are their values again.
    """
    plain = written(path)
    return typed(restored(plain) if with_secrets else plain)


def written(path: Path) -> dict[str, Any]:
    """The plain values of a run's `config.yaml`, as they stand there."""
    try:
        plain = load_yaml(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, YAMLError) as error:
        raise ConfigError(str(path), "cannot be read", str(error).splitlines()[0]) from error
    if not isinstance(plain, dict):
        raise ConfigError(str(path), "is no configuration", "use the config.yaml that a run wrote")
    return plain  # type: ignore[return-value]


def shown(node: DictConfig, *, resolve: bool) -> str:
    """The composition as YAML without what no agent overrides: what `--cfg job` prints."""
    plain = OmegaConf.to_container(node, resolve=resolve, enum_to_str=True)
    return OmegaConf.to_yaml(OmegaConf.create(_without_missing(plain)))


def leaves(plain: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of all leaves."""
    if isinstance(plain, dict) and plain:
        for key, value in plain.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, plain


def _refuse_kinds_alone(node: DictConfig) -> None:
    """Raise where `kind` alone was changed: the other keys of the group are those of another kind."""
    for group, kinds in KINDS.items():
        kind = str(getattr(node[group].kind, "value", node[group].kind))
        if kind in kinds and OmegaConf.get_type(node[group]) not in (kinds[kind], dict):
            options = [file.stem for file in sorted((config_dir() / group).glob("*.yaml"))]
            remedy = f"use {group}={kind}" if kind in options else f"use one of {' '.join(options)}"
            raise ConfigError(f"{group}.kind={kind}", "cannot be set alone: it comes with an option", remedy)


def _without_missing(plain: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    kept = {key: _without_missing(value) for key, value in plain.items() if value != "???"}
    return {key: value for key, value in kept.items() if value != {} or plain[key] == {}}


def _groups_of(node: DictConfig, agent: DictConfig, name: str) -> dict[str, Any]:
    """One agent's values of every group: its own over the run's.

    Where its actor is of another kind than the run's, its own values of actor and critic stand over what options of
    these kinds give; where only its critic is, those of the critic do. Nothing that is said of the run's reaches it.
    """
    kinds = {group: _kind(agent[group], node[group]) for group in KINDS_PER_AGENT}
    others = [group for group, kind in kinds.items() if kind != node[group].kind.value]
    if others:
        node = copy.deepcopy(node)
        options = _options(node.task.kind.value, kinds)
        for group in KINDS_PER_AGENT if "actor" in others else others:
            node[group] = options[group]
    found: dict[str, Any] = {}
    for group in PER_AGENT:
        own = _merged(node, group, agent[group], name)
        if group == "actor" and any(not OmegaConf.is_missing(agent.actor, leaf) for leaf in agent.actor):
            node = copy.deepcopy(node)
            node.actor = own  # what a critic takes from its actor, such as the number format, is taken from this one
        found[group] = _container(own)
        if group in KEYS_PER_AGENT:
            known = {leaf.name for leaf in fields(KEYS_PER_AGENT[group])}
            found[group] = {leaf: value for leaf, value in found[group].items() if leaf in known}
    return found


def _options(task: str, kinds: Mapping[str, str]) -> DictConfig:
    """The composition with options of these kinds: beside a world, what a model made locally starts with follows it."""
    world = [f"task={task}"] if (config_dir() / "base" / "actor" / f"{task}.yaml").is_file() else []
    return compose_node([*world, *(f"{group}={kind}" for group, kind in kinds.items())])


def _kind(own: DictConfig, shared: DictConfig) -> str:
    """Which kind of a group an agent has: its own choice, or the run's."""
    kind = shared.kind if OmegaConf.is_missing(own, "kind") else own.kind
    return str(kind.value)


def _merged(node: DictConfig, group: str, own: DictConfig, agent: str) -> DictConfig:
    """A group's values with those of one agent over them."""
    overrides = {leaf: own[leaf] for leaf in own if not OmegaConf.is_missing(own, leaf)}
    for leaf, value in overrides.items():
        if leaf not in node[group]:
            raise ConfigError(
                f"task.agents.{agent}.{group}.{leaf}={value}",
                f"is no key of {group}={node[group].kind.value}",
                "it has: " + " ".join(node[group]),
            )
    return OmegaConf.merge(node[group], overrides)  # type: ignore[return-value]


def _value(node: DictConfig, leaf: Any) -> Any:
    try:
        return node[leaf]
    except OmegaConfBaseException as error:
        raise _unusable(error) from error


def _unusable(error: OmegaConfBaseException) -> ConfigError:
    return ConfigError(str(error.full_key), "has no usable value", str(error).splitlines()[0])


def _container(node: Any) -> dict[str, Any]:
    try:
        plain = OmegaConf.to_container(node, resolve=True, enum_to_str=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise _unusable(error) from error
    assert isinstance(plain, dict)
    return plain  # type: ignore[return-value]


def _part(plain: Any, name: str, where: str) -> dict[str, Any]:
    """A group of a configuration that was written down."""
    part = plain.get(name) if isinstance(plain, dict) else None
    if not isinstance(part, dict):
        raise ConfigError(f"{where}{name}", "is no group of values here", "use the config.yaml that a run wrote")
    return part


def _typed_group(group: str, value: dict[str, Any], where: str = "") -> Any:
    where = f"{where}{group}."
    return _object(PLAIN[group], value, where) if group in PLAIN else _of_kind(group, value, where)


def _of_kind(group: str, value: dict[str, Any], where: str) -> Any:
    kind = str(value.get("kind"))
    if kind not in KINDS[group]:
        raise ConfigError(f"{where}kind={kind}", "is not known", "use one of " + " ".join(KINDS[group]))
    _refuse_keys_of_others(group, kind, value, where)
    return _object(KINDS[group][kind], value | ({"agents": {}} if group == "task" else {}), where)


def _refuse_keys_of_others(group: str, kind: str, value: dict[str, Any], where: str) -> None:
    """Raise for a key that another kind of the group has: it was added by force, for it may have any keys below it."""
    known = {option: {leaf.name for leaf in fields(cls)} for option, cls in KINDS[group].items()}
    for leaf in value.keys() - known[kind]:
        if others := [f"{group}={option}" for option in known if leaf in known[option]]:
            raise ConfigError(f"{where}{leaf}", f"is no key of {group}={kind}", "use " + " or ".join(others))


def _object(cls: type[T], value: dict[str, Any], where: str) -> T:
    try:
        return OmegaConf.to_object(OmegaConf.merge(_structured(cls), _literal(value)))  # type: ignore
    except (ConfigKeyError, ConfigAttributeError) as error:
        raise _unknown_key(f"{where}{error.full_key}", value.get(str(error.full_key)), cls) from error
    except MissingMandatoryValue as error:
        raise ConfigError(
            f"{where}{error.full_key or str(error).splitlines()[0].split()[-1]}",
            "is missing",
            "every key needs a value",
        ) from error
    except OmegaConfBaseException as error:
        written = OmegaConf.select(OmegaConf.create(_literal(value)), str(error.full_key), default="???")
        setting = f"{where}{error.full_key}" + ("" if written == "???" else f"={written}")
        raise ConfigError(setting, "does not fit its schema", str(error).splitlines()[0]) from error


def _unknown_key(key: str, value: Any, cls: type[Any]) -> ConfigError:
    """The error for a key that was appended with `+`; a key of another project has the answer of `peers.yaml`."""
    full_key, _ = next(leaves(value, key))
    if (answer := find_answer(full_key)) is not None:
        return ConfigError(full_key, answer.rule, answer.remedy)
    return ConfigError(key, "is no key here", "there are " + " ".join(leaf.name for leaf in fields(cls)))


@cache
def _structured(cls: type[Any]) -> DictConfig:
    return OmegaConf.structured(schema.unset(cls))


def _literal(value: Any) -> Any:
    """The same values for OmegaConf to take as they are: a string of the user's may hold `${`."""
    if isinstance(value, dict):
        return {key: _literal(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_literal(part) for part in value]
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", value) if isinstance(value, str) else value
