"""Shared by commands on trained weights: parsing of their own keys, and the configuration of a run or model."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ippo_cli.config.commands import hydra_override, parse_path, parse_paths
from ippo_cli.runs.output import print_text

SPLIT_KEYS = ("task.eval_share", "task.columns", "task.map", "task.filter", "task.data_config", "task.streaming")
"""Keys that determine which training rows `task.eval_share` holds out."""
EXPORT_LISTING = "export.json"
"""File that ippo-export writes beside the folders of agents."""

if TYPE_CHECKING:
    from ippo_cli.config.errors import Check, ConfigError
    from ippo_cli.config.schema import Config


def split_command_keys(argv: Sequence[str], own: Collection[str]) -> tuple[dict[str, str], list[str]]:
    """Split arguments into values of the command's own keys and overrides of a run."""
    from ippo_cli.compose.arguments import normalize_arguments
    from ippo_cli.compose.flags import check_flags

    check_flags(argv, own)
    found: dict[str, str] = {}
    rest: list[str] = []
    for text in argv:
        key, equals, value = text.partition("=")
        if key in own and equals:
            found[key] = value
        else:
            rest.append(text)
    return found, normalize_arguments(rest)


def check_command_keys(overrides: Sequence[str], own: Collection[str]) -> None:
    """Raise `ConfigError` for an override that is close to one of the command's own keys."""
    from ippo_cli.config.errors import ConfigError

    for text in overrides:
        if close := get_close_matches(text.partition("=")[0], own, n=1, cutoff=0.7):
            raise ConfigError(text, "is not a key", f"did you mean {close[0]}=?")


def check_own_values(
    own: dict[str, str], overrides: Sequence[str], keys: Collection[str], values: Check, *, remedy: str
) -> None:
    """Raise one `ConfigError` for all mistakes in the command's own keys; replaces `run=` as `resolve_run` does.

    `values`: the check of single values. `remedy`: what to type instead of neither or both of `run=` and `model=`.
    """
    from ippo_cli.config.errors import ConfigError, collect_errors, combine_errors

    def check_source() -> Iterator[ConfigError]:
        if bool(own.get("run")) == bool(own.get("model")):
            check_command_keys(overrides, keys)
            rule = "is missing" if not own.get("run") else f"cannot be combined with model={own['model']}"
            yield ConfigError(f"run={own.get('run', '')}", rule, remedy)

    if errors := collect_errors([check_source, values, lambda: resolve_run(own)]):
        raise combine_errors(errors)


def split_names(text: str) -> list[str]:
    """Split a list of names, `[a,b]` or `a,b`."""
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    return [name for part in inner.split(",") if (name := part.strip().strip("'\""))]


def resolve_run(own: dict[str, str]) -> None:
    """Replace a single `run=` by the run's folder in place, and set `checkpoint=` if the path names one.

    Raises `ConfigError` if `checkpoint=` names another one.
    """
    from ippo_cli.compose.run_folders import find_run
    from ippo_cli.config.errors import ConfigError

    typed = parse_paths(own.get("run", ""))
    if len(typed) != 1:
        return
    folder, checkpoint = find_run(typed[0])
    if folder != Path(typed[0]).absolute():
        path_text = folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
        print_text(
            f"run={typed[0]} is run={path_text}" + (f" checkpoint={checkpoint}" if checkpoint else ""), to_stderr=True
        )
        own["run"] = str(path_text)
    if checkpoint is not None and own.setdefault("checkpoint", checkpoint) != checkpoint:
        raise ConfigError(
            f"checkpoint={own['checkpoint']}", f"contradicts run={typed[0]}", f"remove it, or use run={folder}"
        )


def parse_bool_key(own: dict[str, str], key: str, default: bool) -> bool:
    """Parse a key that is true or false."""
    from ippo_cli.config.errors import ConfigError

    typed = own.get(key, str(default).lower())
    if typed not in ("true", "false"):
        raise ConfigError(f"{key}={typed}", "is neither true nor false", f"use {key}={str(not default).lower()}")
    return typed == "true"


def load_run_config(folder: Path, run: str, overrides: list[str], *, data: bool = True) -> Config:
    """Load a run's configuration with additional overrides; `data=False` does not check the data's hub access."""
    from ippo_cli.compose.resume import check_unchanged_config, overrides_with_weights
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.runs.input_files import changed_input_warnings, input_files
    from ippo_cli.runs.missing_parts import find_missing_parts
    from ippo_cli.runs.records import RunRecord

    if not (folder / "config.yaml").is_file():
        raise ConfigError(f"run={run}", "is not a run", "use a run's folder such as outputs/NAME/DATE-ID")
    for text in find_missing_parts(RunRecord(folder)) if (folder / "run.json").is_file() else ():
        print_text(f"warning: run={run} is incomplete: {text}", to_stderr=True)
    saved = overrides_with_weights(folder, overrides)
    config = compose_checked([*saved, *overrides], overrides, of_model=False, data=data)
    check_unchanged_config(folder, saved, overrides)
    for line in changed_input_warnings(folder, input_files(config, data=data), ("task.", "reward.")):
        print_text(f"warning: {line}", to_stderr=True)
    typed = {text.partition("=")[0].lstrip("+") for text in overrides}
    if "task.eval_size" in typed:
        _check_unseen_examples(config, folder)
    _check_split_keys(config, typed)
    return config


def load_model_config(model: str, overrides: list[str], *, data: bool = True) -> Config:
    """Configuration for the evaluation of a model or an exported team on a task."""
    config = compose_checked([*model_overrides(model, overrides), *overrides], overrides, of_model=True, data=data)
    _check_local_models(config)
    return config


def model_overrides(model: str, overrides: Sequence[str]) -> list[str]:
    """Overrides for `model=`: one model for all agents, or one model per agent of an exported team."""
    folder = parse_path(model)
    if not (folder / EXPORT_LISTING).is_file():
        return ["actor=full", hydra_override("actor.model", str(folder.absolute()) if folder.exists() else model)]
    from ippo_cli.compose.load import compose_node

    models = _match_agents(folder, [str(name) for name in compose_node(overrides).task.agents])
    return ["actor=full", *(hydra_override(f"task.agents.{name}.actor.model", place) for name, place in models.items())]


def exported_models(folder: Path, config: Config) -> dict[str, str] | None:
    """Folders of an exported team by agent; None for the folder of a single model."""
    return _match_agents(folder, list(config.task.agents)) if (folder / EXPORT_LISTING).is_file() else None


def _match_agents(folder: Path, agents: Sequence[str]) -> dict[str, str]:
    """Folders of an exported team by the task's agents. Raises `ConfigError` if an agent has no model."""
    from ippo_cli.config.errors import ConfigError

    exported = list(json.loads((folder / EXPORT_LISTING).read_text())["agents"])
    if len(exported) == len(agents) == 1:
        found = {agents[0]: folder / exported[0]}
    elif missing := [name for name in agents if name not in exported]:
        raise ConfigError(
            f"model={folder}",
            f"has the agents {' '.join(exported)}, and the task also has {' '.join(missing)}",
            f"set task= to the task of the training, or use a single model: model={folder / exported[0]}",
        )
    else:
        found = {name: folder / name for name in agents}
    for place in found.values():
        if not (place / "config.json").is_file():
            raise ConfigError(
                f"model={folder}", f"has only an adapter in {place.name}/", "export it with merged=true, or use run="
            )
    return {name: str(place.absolute()) for name, place in found.items()}


def compose_checked(overrides: list[str], typed_now: list[str], *, of_model: bool, data: bool = True) -> Config:
    """Compose and check a configuration; every override in `typed_now` must have an effect on the evaluation."""
    from ippo_cli.compose.arguments import merge_search_paths
    from ippo_cli.compose.hub_names import check_hub_access
    from ippo_cli.compose.load import build_config, compose_node, resolve_config
    from ippo_cli.compose.named_files import check_named_files
    from ippo_cli.compose.typed_kinds import check_typed_kinds
    from ippo_cli.compose.user_files import check_user_files
    from ippo_cli.config.checks import check_config
    from ippo_cli.config.errors import collect_errors, combine_errors
    from ippo_cli.config.evaluation import check_evaluation_overrides
    from ippo_cli.config.model_hub import download_models

    combined = merge_search_paths(overrides)
    check_user_files(combined)
    check_typed_kinds(typed_now, [text for text in combined if text not in typed_now])
    plain = resolve_config(compose_node(combined))  # first, so that unknown keys are reported as unknown
    check_evaluation_overrides(typed_now, of_model=of_model)
    config = build_config(plain)
    typed = {text.partition("=")[0].lstrip("+") for text in typed_now}
    rules = [
        partial(check_config, config, 1, training=False),
        # A checkpoint has the models and chat template of its run.
        partial(check_named_files, config, models=of_model, training=False, data=data, typed=typed),
    ]
    if errors := collect_errors(rules):
        raise combine_errors(errors)
    check_hub_access(config, models=of_model, training=False, data=data)  # a run's models come from its checkpoint
    return download_models(config, agents=of_model)


def load_training_config(overrides: list[str]) -> Config:
    """Compose and check the configuration of a training. Raises `ConfigError` with the mistakes of its overrides."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from ippo_cli.compose.arguments import merge_search_paths
    from ippo_cli.compose.diagnose import diagnose_error
    from ippo_cli.compose.load import load_config
    from ippo_cli.compose.typed_kinds import check_typed_kinds
    from ippo_cli.compose.user_files import check_user_files
    from ippo_cli.compose.validate import WrongConfig
    from ippo_cli.config.checks import check_config
    from ippo_cli.config.errors import UnknownKey
    from ippo_cli.config.hardware import world_size

    combined = merge_search_paths(overrides)
    check_user_files(combined)
    check_typed_kinds(combined, [])
    try:
        config = load_config(combined)
    except (HydraException, OmegaConfBaseException, UnknownKey, WrongConfig) as error:
        raise diagnose_error(combined, error) from error
    check_config(config, world_size(config, None))
    return config


def _check_local_models(config: Config) -> None:
    """Raise `ConfigError` for an agent with a locally created model."""
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.config.schema import TinyActorConfig

    for name, agent in config.task.agents.items():
        if isinstance(agent.actor, TinyActorConfig):
            raise ConfigError(
                f"task.agents.{name}.actor.kind={agent.actor.kind.value}",
                "is created by training, and model= is an existing model",
                f"add task.agents.{name}.actor=full, or evaluate the run",
            )


def _check_split_keys(config: Config, typed: Collection[str]) -> None:
    """Raise `ConfigError` for overrides that change which training rows `task.eval_share` holds out."""
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.config.schema import DataConfig

    if not isinstance(config.task, DataConfig) or config.task.eval_share is None:
        return
    for key in sorted(typed):
        if key.startswith(SPLIT_KEYS):
            raise ConfigError(
                key,
                f"changes the held-out rows of the run (task.eval_share={config.task.eval_share}), so that they may "
                "include training rows",
                "use other data: task.eval_share=null task.eval=FILE",
            )


def _check_unseen_examples(config: Config, folder: Path) -> None:
    """Raise `ConfigError` for a larger `task.eval_size` on generated examples: training used the examples after it."""
    from ippo_cli.compose.load import build_config
    from ippo_cli.compose.resume import saved_config
    from ippo_cli.config.errors import ConfigError
    from ippo_cli.config.schema import DataConfig

    task, trained = config.task, build_config(saved_config(folder)).task
    if isinstance(task, DataConfig) or isinstance(trained, DataConfig):
        return
    wanted, held_out = (getattr(owner, "eval_size") for owner in (task, trained))  # noqa: B009 (every generated task's)
    if wanted > held_out:
        raise ConfigError(
            f"task.eval_size={wanted}", "would include training examples of the run", f"use at most {held_out}"
        )
