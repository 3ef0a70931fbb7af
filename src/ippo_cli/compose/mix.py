"""Parts of `reward=mix`: keys of the part's kind, plus common reward keys of the mix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import OPTIONS, MixRewardConfig, RewardConfig

BuildReward = Callable[[dict[str, Any], str], RewardConfig]
COMMON_KEYS = tuple(leaf.name for leaf in fields(RewardConfig))


def complete_parts(reward: dict[str, Any], options: Path) -> None:
    """Fill missing keys of each part of a mix, in place, from the option of its kind in the folder `options`."""
    if reward.get("kind") != "mix":
        return
    reward["parts"] = {name: _complete_part(name, part, options) for name, part in reward["parts"].items()}


def build_parts(mix: MixRewardConfig, typed: BuildReward) -> dict[str, RewardConfig]:
    """Build each part as a reward of its kind, with the mix's values of common keys."""
    common = {name: getattr(mix, name) for name in COMMON_KEYS if name != "kind"}
    common["processor"] = list(mix.processor)
    parts: dict[str, RewardConfig] = {}
    for name, part in mix.parts.items():
        where = f"reward.parts.{name}"
        if not isinstance(part, Mapping) or "kind" not in part:
            raise ConfigError(where, "has no kind", "use a mapping such as {kind: length, high: 200}")
        if idle := [key for key in part if key in common]:
            raise ConfigError(f"{where}.{idle[0]}", "is a key of the whole mix", f"set reward.{idle[0]}")
        parts[name] = typed({**common, **part}, where)
    return parts


def _complete_part(name: str, part: Any, options: Path) -> Any:
    kind = part.get("kind") if isinstance(part, Mapping) else None
    where = f"reward.parts.{name}"
    known = [kind for kind in OPTIONS["reward"] if kind != "mix"]
    if kind is None:
        raise ConfigError(where, "has no kind", "use a mapping such as {kind: length, high: 200}")
    if kind not in known:
        raise ConfigError(f"{where}.kind={kind}", "cannot be a part", f"use one of {' '.join(known)}")
    option = OmegaConf.to_container(OmegaConf.load(options / f"{kind}.yaml"))
    assert isinstance(option, dict)
    return {key: value for key, value in option.items() if key != "defaults" and key not in COMMON_KEYS} | {**part}
