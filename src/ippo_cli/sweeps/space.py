"""The space of a search: an interval or a list of values per key, in the syntax of Hydra's sweep overrides."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep
from hydra.errors import HydraException

from ippo_cli.config.errors import ConfigError
from ippo_cli.sweeps.grid import expand_override

Options = Callable[[str], list[str]]
DIGITS = 3  # significant digits of sampled numbers: precise enough for hyperparameters, and readable


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """The values of one key: an interval, or an ordered list."""

    key: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    integer: bool = False
    choices: tuple[str, ...] = ()

    def format_number(self, number: float) -> str:
        """A number of the interval as text for an override."""
        if self.integer:
            return str(min(max(round(number), int(self.low)), int(self.high)))
        rounded = float(f"{number:.{DIGITS}g}")
        return repr(rounded if self.low <= rounded <= self.high else min(max(number, self.low), self.high))

    def sample(self, source: random.Random) -> str:
        """A value sampled uniformly from the list or the interval, or uniformly in its logarithm."""
        if self.choices:
            return source.choice(self.choices)
        if self.log:
            return self.format_number(math.exp(source.uniform(math.log(self.low), math.log(self.high))))
        if self.integer:
            return str(source.randint(int(self.low), int(self.high)))
        return self.format_number(source.uniform(self.low, self.high))

    def step_value(self, value: str, factor: float) -> str:
        """The number times `factor`; in a list, the next value, or the previous one for a factor below 1.

        Whole numbers change by at least 1. At an end of the range the value stays the same.
        """
        if self.choices:
            place = self.choices.index(value) + (1 if factor > 1.0 else -1)
            return self.choices[min(max(place, 0), len(self.choices) - 1)]
        if self.integer:
            number = int(value)
            step = round(number * factor) - number
            return self.format_number(number + (step or (1 if factor > 1.0 else -1)))
        return self.format_number(float(value) * factor)


def parse_space(space: Mapping[str, str], typed: Sequence[str], options: Options) -> tuple[list[Dimension], list[str]]:
    """The dimensions of `sweep.space` and of typed sweep overrides, which take precedence; and the other overrides."""
    parser = OverridesParser.create()
    found = {key: _parse_dimension(key, text, f"sweep.space.{key}={text}", options) for key, text in space.items()}
    fixed: list[str] = []
    for text in typed:
        key = text.partition("=")[0].lstrip("+")
        if parser.parse_override(text).is_sweep_override():
            found[key] = _parse_dimension(key, text.partition("=")[2], text, options)
        else:
            found.pop(key, None)
            fixed.append(text)
    return list(found.values()), fixed


def _parse_dimension(key: str, text: str, setting: str, options: Options) -> Dimension:
    remedy = "write interval(LOW, HIGH), tag(log, interval(LOW, HIGH)), int(interval(LOW, HIGH)), choice(A, B) or A,B"
    try:
        override = OverridesParser.create().parse_override(f"{key}={text}")
    except HydraException as error:
        raise ConfigError(setting, "is not an interval or list of values", remedy) from error
    value = override.value()
    if not isinstance(value, IntervalSweep):
        choices = tuple(text.partition("=")[2] for text in expand_override(override, options))
        if len(choices) < 2:
            raise ConfigError(setting, "has only one value", remedy)
        return Dimension(key=key, choices=choices)
    assert value.start is not None
    assert value.end is not None
    low, high, log = value.start, value.end, "log" in (value.tags or set())
    if not low < high or (log and low <= 0):
        raise ConfigError(
            setting, "is an empty interval" if not low < high else "needs a lower end above 0 for tag(log)", remedy
        )
    return Dimension(key=key, low=low, high=high, log=log, integer=isinstance(low, int) and isinstance(high, int))
