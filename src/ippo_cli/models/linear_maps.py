"""Linear maps of a language model that can have an adapter, found by name, without reading weights.

Only maps that PEFT and inference servers read from an adapter folder as trained are included. In mixtures of experts
PEFT applies names such as `gate_proj` to the experts, which are one tensor per layer and no linear maps, even if a
dense layer or a shared expert has a map of that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.pytorch_utils import Conv1D

from ippo_cli.config.adapters import pattern_value, rank_for_module
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import ALL_LINEAR, LoraConfig

MAMBA = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
"""Families in which PEFT rejects `out_proj`: fast kernels read its weight without calling it."""
Widths = tuple[int, int]  # input width, output width


def linear_maps(lm: PreTrainedModel) -> dict[str, Widths]:
    """Every map that can have an adapter, by path, with its widths."""
    left_out = maps_without_adapter(lm)
    return {path: _widths(part) for path, part in _all_maps(lm) if path not in left_out}


def maps_without_adapter(lm: PreTrainedModel) -> dict[str, str]:
    """Linear maps in a model's layers that cannot have an adapter: the reason by path."""
    maps = dict(_all_maps(lm))
    unreadable = _names_unsupported_by_peft(lm, short_names(list(maps)))
    reasons = {path: _exclusion_reason(path, part, unreadable) for path, part in maps.items()}
    return {path: reason for path, reason in reasons.items() if reason is not None}


def _all_maps(lm: PreTrainedModel) -> Iterator[tuple[str, nn.Linear | Conv1D]]:
    """All linear maps except the head, which is called separately from the model, on selected tokens."""
    head = lm.get_output_embeddings()
    for path, part in lm.named_modules():
        if isinstance(part, nn.Linear | Conv1D) and part is not head:
            yield path, part


def _exclusion_reason(path: str, part: nn.Linear | Conv1D, unreadable: Mapping[str, str]) -> str | None:
    """The reason why a map cannot have an adapter; None if it can."""
    name = path.rpartition(".")[2]
    if type(part).__name__.endswith("Router"):
        return f"{type(part).__name__} selects experts, and returns more than a linear map does"
    if min(_widths(part)) == 1:
        return "its output is a single number, which has no low rank"
    if name == "dt_proj":  # of state-space models, which pass its weight to their scan
        return "its weight is read without calling it"
    return unreadable.get(name)


def _names_unsupported_by_peft(lm: PreTrainedModel, names: Sequence[str]) -> dict[str, str]:
    """Names that PEFT does not read as linear maps in a model of this family, or rejects."""
    family = lm.config.model_type
    if family in MAMBA:
        return {name: "PEFT rejects it in state-space models" for name in names if name == "out_proj"}
    if get_checkpoint_conversion_mapping(family) is None:
        return {}
    import peft
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    def stays(name: str) -> bool:
        config = peft.LoraConfig(target_modules=[name])
        try:
            convert_peft_config_for_transformers(config, lm, None)
        except ValueError:  # it is part of a fused tensor
            return False
        return name in (config.target_modules or ())

    return {name: "PEFT uses this name for the experts" for name in names if not stays(name)}


def _widths(part: nn.Linear | Conv1D) -> Widths:
    if isinstance(part, nn.Linear):
        return part.in_features, part.out_features
    return part.nx, part.nf


def targeted_maps(
    maps: Mapping[str, Widths],
    others: Mapping[str, str | None],
    config: LoraConfig,
    setting: str,
    model: str,
) -> dict[str, Widths]:
    """The maps of an adapter with these settings.

    `others` are the paths of modules that cannot have an adapter, see `other_modules`, and `setting` is the config
    group. Raises `ConfigError` for a name without a map, and for a rank above a map's width.
    """
    if not maps:
        raise ConfigError(f"{setting}.model={model}", "has no linear map that can have an adapter", "use actor=full")
    chosen = dict(maps)
    if config.target_modules != ALL_LINEAR:
        chosen = {}
        for target in config.target_modules:
            matches = [path for path in maps if is_named(target, path)]
            if not matches:
                named = {path: reason for path, reason in others.items() if is_named(target, path)}
                _raise_target_error(target, named, maps, setting, model)
            chosen |= {path: maps[path] for path in matches}
        chosen = {path: widths for path, widths in maps.items() if path in chosen}
    for key in ("rank_pattern", "alpha_pattern"):
        for name in getattr(config, key):
            if not any(pattern_value({name: True}, path, False) for path in chosen):
                rule = "matches no module of the adapter"
                raise ConfigError(f"{setting}.{key}", f"{name} {rule}", "use " + " ".join(short_names(list(chosen))))
    narrow = max(chosen, key=lambda path: rank_for_module(config, path) - min(chosen[path]))
    if rank_for_module(config, narrow) > min(chosen[narrow]):
        raise ConfigError(
            f"{setting}.rank={rank_for_module(config, narrow)}",
            f"exceeds the width of {narrow} of {model} ({chosen[narrow][0]} to {chosen[narrow][1]}), which bounds "
            "its rank",
            f"use at most {min(chosen[narrow])}",
        )
    return chosen


def short_names(paths: Sequence[str]) -> list[str]:
    """The distinct last parts of some paths: the names for `target_modules`."""
    return list(dict.fromkeys(path.rpartition(".")[2] for path in paths))


def base_name(source: str) -> str:
    """The name of a model in errors: the last part of its folder."""
    return Path(source).name if Path(source).is_dir() else source


def is_named(target: str, path: str) -> bool:
    """Whether a name matches a module: as its whole path, or as the end of it."""
    return path == target or path.endswith(f".{target}")


def other_modules(lm: PreTrainedModel) -> dict[str, str | None]:
    """Modules that cannot have an adapter, by path, and the reason for linear maps."""
    maps, reasons = linear_maps(lm), maps_without_adapter(lm)
    return {path: reasons.get(path) for path, _ in lm.named_modules() if path not in maps}


def _raise_target_error(
    target: str, named: Mapping[str, str | None], maps: Mapping[str, Widths], setting: str, model: str
) -> NoReturn:
    rule = f"names {target}, and {model} has no such module"
    if named:
        rule = f"names {target}, no linear map within {model}'s layers (its head and embedding cannot have an adapter)"
    if reason := next((reason for reason in named.values() if reason is not None), None):
        rule = f"names {target}, which cannot have an adapter in {model}: {reason}"
    raise ConfigError(
        f"{setting}.target_modules", rule, "use all-linear, or some of " + " ".join(short_names(list(maps)))
    )
