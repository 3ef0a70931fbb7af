"""The linear maps of a language model that an adapter may sit on, found by name: no weight is looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import ALL_LINEAR, LoraConfig

Widths = tuple[int, int]  # of what a map reads and of what it gives


def linear_maps(lm: PreTrainedModel) -> dict[str, Widths]:
    """Every linear map but the head by its path. The head is called apart from the model, on some tokens only."""
    head = lm.get_output_embeddings()
    return {
        path: _widths(part)
        for path, part in lm.named_modules()
        if isinstance(part, nn.Linear | Conv1D) and part is not head
    }


def _widths(part: nn.Linear | Conv1D) -> Widths:
    if isinstance(part, nn.Linear):
        return part.in_features, part.out_features
    return part.nx, part.nf


def targeted_maps(
    maps: Mapping[str, Widths], parts: Sequence[str], config: LoraConfig, setting: str, model: str
) -> dict[str, Widths]:
    """The maps that an adapter with these settings sits on.

    `parts` are the paths of all modules, and `setting` is the group that the settings are of. Raises `ConfigError` for
    a name that is no map's, and for a rank that is more than a map is wide.
    """
    chosen = dict(maps)
    if config.target_modules != ALL_LINEAR:
        chosen = {}
        for target in config.target_modules:
            found = [path for path in maps if is_named(target, path)]
            if not found:
                _refuse(target, [path for path in parts if is_named(target, path)], maps, setting, model)
            chosen |= {path: maps[path] for path in found}
        chosen = {path: widths for path, widths in maps.items() if path in chosen}
    narrow = min(chosen, key=lambda path: min(chosen[path]))
    if config.rank > min(chosen[narrow]):
        raise ConfigError(
            f"{setting}.rank={config.rank}",
            f"is more than {narrow} of {model} is wide ({chosen[narrow][0]} to {chosen[narrow][1]}): no map has more "
            "ranks than that",
            f"use at most {min(chosen[narrow])}",
        )
    return chosen


def short_names(paths: Sequence[str]) -> list[str]:
    """The last parts of some paths, each once: what a user writes into `target_modules`."""
    return list(dict.fromkeys(path.rpartition(".")[2] for path in paths))


def base_name(source: str) -> str:
    """How an error names a model: a folder by its last part."""
    return Path(source).name if Path(source).is_dir() else source


def is_named(target: str, path: str) -> bool:
    """Whether a module is meant by a name: by its whole path, or by the end of it."""
    return path == target or path.endswith(f".{target}")


def _refuse(target: str, others: Sequence[str], maps: Mapping[str, Widths], setting: str, model: str) -> None:
    what = f"names {target}, and {model} has no such module"
    if others:
        what = (
            f"names {target}, which is no linear map within {model}'s layers (its head and embedding take no adapter)"
        )
    raise ConfigError(
        f"{setting}.target_modules", what, "use all-linear, or some of " + " ".join(short_names(list(maps)))
    )
