"""Adapter folders in PEFT format: settings and ranks, read from the configuration and the weights' header."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import PreflightError
from ippo_cli.config.schema import AdapterInit, AdapterMismatch, LoraConfig

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_FILES = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
ADAPTER_SUBFOLDER = "adapter"
"""Subfolder with the adapter, in the folder of a model with the adapter merged into it."""
PEFT_PREFIX = "base_model.model."  # prefix of module paths in PEFT's files
UNSUPPORTED_SETTINGS: dict[str, tuple[tuple[Any, ...], str]] = {
    "bias": (("none",), "biases belong to the base, which agents and the reference share"),
    "modules_to_save": ((None, []), "whole modules belong to the base, which agents and the reference share"),
    "lora_bias": ((False,), "an adapter consists of two matrices"),
    "fan_in_fan_out": ((False, True), ""),
    "target_parameters": ((None, []), "adapters are on linear layers, not on expert tensors"),
    "layer_replication": ((None, []), "an adapter keeps the layers of its base"),
}
"""Settings of PEFT without full support: supported values, and the reason why others are rejected."""


@dataclass(frozen=True, kw_only=True)
class StoredAdapter:
    """Settings and ranks of a saved adapter."""

    folder: Path
    settings: LoraConfig  # target_modules are full module paths
    ranks: dict[str, int]  # by module path
    base: str | None  # name of the base model, from the settings

    def module_rank(self, path: str) -> int:
        """The rank on a module; 0 without an adapter."""
        return self.ranks.get(path, 0)


def has_merged_adapter(model: str) -> bool:
    """Whether the model of a folder has an adapter merged into it."""
    return (Path(model) / ADAPTER_SUBFOLDER / ADAPTER_CONFIG).is_file()


def find_adapter_folder(folder: Path, setting: str) -> Path:
    """Find the adapter in a folder: at the top level, in `adapter/`, or in `actor/`. Raises `PreflightError`."""
    for place in (folder, folder / ADAPTER_SUBFOLDER, folder / "actor", folder / "actor" / ADAPTER_SUBFOLDER):
        if all((place / name).is_file() for name in ADAPTER_FILES):
            return place
    if setting == "critic.warm_start" and (folder / "config.json").is_file():
        raise PreflightError(
            f"{setting}={folder}: it holds a whole model, and critic=adapter trains an adapter on its actor's base; "
            "use critic=separate, which starts from a critic or a reward model, or an agent's critic/ folder of a "
            "run with critic=adapter"
        )
    raise PreflightError(
        f"{setting}={folder}: has no adapter; use a folder with {' and '.join(ADAPTER_FILES)}, such as an "
        "agent's actor/ folder in a checkpoint"
    )


def find_reference_folder(reference: str) -> tuple[Path, bool]:
    """Return the folder of `actor.reference` or its `actor/` subfolder, and whether it holds an adapter.

    Raises `PreflightError` if it holds neither an adapter nor a model.
    """
    for place in (Path(reference), Path(reference) / "actor"):
        if (place / "config.json").is_file():
            return place, False
        if all((place / name).is_file() for name in ADAPTER_FILES):
            return place, True
    raise PreflightError(
        f"actor.reference={reference}: it is neither initial nor base nor a folder with a model (config.json) or an "
        f"adapter ({ADAPTER_CONFIG}); give an agent's folder in a checkpoint, such as RUN/checkpoints/step_N/AGENT"
    )


def read_adapter(folder: Path, setting: str) -> StoredAdapter:
    """Read the settings of an adapter. Raises `PreflightError` for an unsupported adapter."""
    where, place = f"{setting}={folder}", find_adapter_folder(folder, setting)
    try:
        stored = json.loads((place / ADAPTER_CONFIG).read_text())
        if stored["peft_type"] != "LORA":
            raise PreflightError(f"{where}: peft_type={stored['peft_type']} is not supported; use LORA")
        settings = LoraConfig(
            rank=int(stored["r"]),
            alpha=float(stored["lora_alpha"]),
            use_rslora=bool(stored.get("use_rslora", False)),
            use_dora=bool(stored.get("use_dora", False)),
            target_modules=[],
            rank_pattern={key: int(value) for key, value in (stored.get("rank_pattern") or {}).items()},
            alpha_pattern={key: float(value) for key, value in (stored.get("alpha_pattern") or {}).items()},
            adapter_mismatch=AdapterMismatch.error,
            init=AdapterInit.default,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PreflightError(f"{where}: {ADAPTER_CONFIG} cannot be read ({error!r})") from error
    for key, (values, reason) in UNSUPPORTED_SETTINGS.items():
        if key in stored and stored[key] not in values:
            raise PreflightError(f"{where}: its {key} is {stored[key]}, which is not supported: {reason}")
    ranks = _read_ranks(place / ADAPTER_WEIGHTS, where)
    return StoredAdapter(
        folder=place,
        settings=replace(settings, target_modules=list(ranks)),
        ranks=ranks,
        base=stored.get("base_model_name_or_path"),
    )


def _read_ranks(file: Path, where: str) -> dict[str, int]:
    """Ranks by module path, from the header of the weights."""
    try:
        with file.open("rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        shapes = {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
        suffix = ".lora_A.weight"
        return {
            name.removeprefix(PEFT_PREFIX).removesuffix(suffix): int(shape[0])
            for name, shape in shapes.items()
            if name.endswith(suffix)
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MemoryError, OverflowError) as error:
        raise PreflightError(f"{where}: {ADAPTER_WEIGHTS} cannot be read ({error})") from error


def pattern_value(pattern: Mapping[str, Any], path: str, otherwise: Any) -> Any:
    """The value of a module in `rank_pattern` or `alpha_pattern`: of the first key that matches the end of its path."""
    return next((value for key, value in pattern.items() if re.match(rf"(.*\.)?({key})$", path)), otherwise)


def rank_for_module(settings: LoraConfig, path: str) -> int:
    """The rank of an adapter on a module."""
    return int(pattern_value(settings.rank_pattern, path, settings.rank))


def scale_for_module(settings: LoraConfig, path: str, rank: int | None = None) -> float:
    """The factor of `B A` on a module."""
    alpha = float(pattern_value(settings.alpha_pattern, path, settings.alpha))
    rank = rank_for_module(settings, path) if rank is None else rank
    return alpha / (rank**0.5 if settings.use_rslora else rank)


def merge_settings(settings: LoraConfig, stored: StoredAdapter, paths: Iterable[str]) -> LoraConfig:
    """Settings of an adapter that can hold both: the larger rank of each module, and the modules of both.

    `paths` are the target modules of `settings`. The scale is that of `settings`.
    """
    wanted = list(paths)
    rank = max([settings.rank, *stored.ranks.values()])
    if not settings.rank_pattern and not stored.settings.rank_pattern:
        pattern: dict[str, int] = {}
    else:
        ranks = {path: rank_for_module(settings, path) for path in wanted}
        both = {path: max(ranks.get(path, 0), stored.module_rank(path)) for path in {**ranks, **stored.ranks}}
        pattern = {re.escape(path): own for path, own in both.items() if own != rank}
    modules = [*wanted, *(path for path in stored.ranks if path not in wanted)]
    return replace(settings, rank=rank, rank_pattern=pattern, target_modules=modules)


def resolve_initial_settings(
    settings: LoraConfig, earlier: str | None, key: str, paths: Callable[[], Iterable[str]]
) -> LoraConfig:
    """Settings of an adapter that starts from the folder `earlier`, the value of `key`.

    Raises `PreflightError` if the settings differ and `adapter_mismatch` is not merge.
    """
    if earlier is None:
        return settings
    stored = read_adapter(Path(earlier), key)
    if settings.adapter_mismatch is AdapterMismatch.merge:
        if settings.use_dora or stored.settings.use_dora:
            raise PreflightError(
                f"{key}={earlier}: adapter_mismatch=merge does not support use_dora, because its norms depend on "
                "rank and scale; use the earlier adapter's settings with adapter_mismatch=error"
            )
        return merge_settings(settings, stored, paths())
    check_same_settings(settings, stored, f"{key}={earlier}")
    return settings


def check_same_settings(settings: LoraConfig, stored: StoredAdapter, where: str) -> None:
    """Raise `PreflightError` if the settings of an adapter differ from the configured ones; ignores modules."""
    for key in ("rank", "alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern"):
        has, wanted = getattr(stored.settings, key), getattr(settings, key)
        if has != wanted:
            value = str(has).lower() if isinstance(has, bool) else has if isinstance(has, dict) else f"{has:g}"
            raise PreflightError(
                f"{where}: its {key} is {value} and not {wanted}; set {key}={value}, or adapter_mismatch=merge"
            )
