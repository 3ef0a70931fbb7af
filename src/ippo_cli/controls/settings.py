"""The keys of `ippo-controls`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Annotated, Any

from ippo_cli.compose.configured import split_names
from ippo_cli.compose.validate import validate_values
from ippo_cli.config.checks import check_constraints
from ippo_cli.config.constraints import Name, PositiveInt, Range
from ippo_cli.config.errors import ConfigError

PREFIX = "controls."


class Differences(str, Enum):
    """What is assumed about the differences of scores."""

    bounded = "bounded"
    normal = "normal"


@dataclass(kw_only=True)
class ControlsConfig:
    """What is compared with the team, and when it ends."""

    arms: list[str] | None = None  # arms to train; null = all that the configuration admits
    single: str | None = None  # overrides that make the team's task one for a single agent, as typed in a shell
    no_messages: str | None = None  # overrides that remove messages between agents; null = by the task's protocol
    seeds: PositiveInt = 20  # the most seeds of each arm, from seed= upwards
    alpha: Annotated[float, Range(0.0, 1.0, open_low=True, open_high=True)] = 0.05  # probability of any false verdict
    differences: Differences = Differences.bounded  # bounded (by the range of scores) | normal (fewer seeds)
    range: list[float] | None = None  # lowest and highest possible score; null = that of the metric, if it is known
    to: Name | None = None  # folder; null = output_dir/controls/NAME-HASH, the same for the same overrides


def parse_settings(own: Mapping[str, str]) -> ControlsConfig:
    """The settings of typed keys, which begin with `controls.`. Raises `ConfigError`."""
    typed = {key.removeprefix(PREFIX): value for key, value in own.items()}
    plain = asdict(ControlsConfig()) | {key: _PARSERS.get(key, str)(value) for key, value in typed.items()}
    settings = validate_values(ControlsConfig, plain, PREFIX)
    check_constraints(settings, PREFIX)
    limits = settings.range
    if limits is not None and (len(limits) != 2 or not -math.inf < limits[0] < limits[1] < math.inf):
        rule = "is not a lower and an upper limit, both finite"
        raise ConfigError(f"{PREFIX}range={typed['range']}", rule, f"use {PREFIX}range=[0,1]")
    return settings


def _parse(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser that returns a text unchanged that is no number, which validation then refuses."""

    def parse(text: str) -> Any:
        try:
            return kind(text)
        except ValueError:
            return text

    return parse


_PARSERS: dict[str, Callable[[str], Any]] = {
    "arms": split_names,
    "seeds": _parse(int),
    "alpha": _parse(float),
    "range": lambda text: [_parse(float)(name) for name in split_names(text)],
}
