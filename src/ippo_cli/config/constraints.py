"""Constraints of values beyond their type: annotations of schema fields, used by checks and documentation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Protocol, get_type_hints

from ippo_cli.config.doors import DOORS, find_entry_points, unknown_name_remedy
from ippo_cli.config.marks import Mark, find_metadata


class Constraint(Protocol):
    def violation(self, value: Any) -> tuple[str, str] | None:
        """Return rule and remedy if the value violates the constraint, else None; ignores values of other types."""
        ...


@dataclass(frozen=True)
class Range:
    """An interval of numbers; infinite limits are open."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    at_low: str = ""  # remedy for a value equal to the excluded lower limit

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"above {self.low:.12g}" if self.open_low else f"at least {self.low:.12g}"
        return f"in {self._interval()}"

    def _interval(self) -> str:
        left = "(" if self.open_low or math.isinf(self.low) else "["
        right = ")" if self.open_high or math.isinf(self.high) else "]"
        return f"{left}{self.low:.12g}, {self.high:.12g}{right}"

    def violation(self, value: Any) -> tuple[str, str] | None:
        if not isinstance(value, int | float):
            return None
        if value < self.low or (self.open_low and value == self.low):
            remedy = f"use a number {'above' if self.open_low else 'of at least'} {self.low:.12g}"
            remedy = f"{self.at_low}; {remedy}" if self.at_low and value == self.low else remedy
        elif value > self.high or (self.open_high and value == self.high):
            remedy = f"use a number {'below' if self.open_high else 'of at most'} {self.high:.12g}"
        else:
            return None
        return f"is out of range; it must be in {self._interval()}", remedy


@dataclass(frozen=True)
class TypicalRange:
    """The usual interval of values; other values are allowed with a warning. 0 means off."""

    low: float = 0.0
    high: float = math.inf

    def warning(self, value: Any) -> str | None:
        """Return the usual limit that the value exceeds, else None."""
        if not isinstance(value, int | float) or value == 0 or self.low <= abs(value) <= self.high:
            return None
        return f"usual values are {f'at most {self.high:g}' if abs(value) > self.high else f'at least {self.low:g}'}"


@dataclass(frozen=True)
class OneOf:
    """Allowed strings; use an enumeration if code refers to single members."""

    choices: tuple[str, ...]

    def __str__(self) -> str:
        return ""  # the field's comment lists them

    def violation(self, value: Any) -> tuple[str, str] | None:
        return None if value in self.choices else ("is not known", "use one of " + " ".join(self.choices))


@dataclass(frozen=True)
class OneOfOrCode:
    """Allowed strings, a user's `path.py:name` or `module:name`, or a name of an installed package's entry point."""

    choices: tuple[str, ...]
    key: str  # of `DOORS`

    def __str__(self) -> str:
        return ""

    def violation(self, value: Any) -> tuple[str, str] | None:
        if value in self.choices or ":" in str(value):
            return None
        group = DOORS[self.key].group
        if value in find_entry_points(group):
            return None
        return "is not known", unknown_name_remedy(group, str(value), self.choices)


@dataclass(frozen=True)
class NotEmpty:
    """A name that must not be empty, such as a file or a folder."""

    def __str__(self) -> str:
        return ""

    def violation(self, value: Any) -> tuple[str, str] | None:
        return ("is empty", "use a file, a folder or a name") if value in ("", []) else None


PositiveInt = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
PositiveFloat = Annotated[float, Range(0.0, open_low=True)]
NonNegativeFloat = Annotated[float, Range(0.0)]
UnitFloat = Annotated[float, Range(0.0, 1.0)]
Risk = Annotated[float, Range(0.0, 1.0, open_low=True)]
LearningRate = Annotated[float, Range(0.0, 1.0), TypicalRange(1e-9, 0.03)]
PositiveLearningRate = Annotated[float, Range(0.0, 1.0, open_low=True), TypicalRange(1e-9, 0.1)]
Coefficient = Annotated[float, Range(0.0), TypicalRange(high=10.0)]
WeightDecay = Annotated[float, Range(0.0), TypicalRange(high=1.0)]
Epsilon = Annotated[float, Range(0.0, open_low=True), TypicalRange(high=1e-2)]
GradNorm = Annotated[float, Range(0.0), TypicalRange(1e-3, 1e4)]
GREEDY = (
    "training needs random samples; greedy decoding is for evaluation: evaluation.greedy=true (with "
    "evaluation.sampled=false for greedy only), or greedy=true in ippo-chat"
)
Temperature = Annotated[float, Range(0.0, open_low=True, at_low=GREEDY), TypicalRange(0.05, 5.0)]
RepetitionPenalty = Annotated[float, Range(0.0, open_low=True), TypicalRange(0.2, 5.0)]
LoraAlpha = Annotated[float, Range(0.0, open_low=True), TypicalRange(high=2048.0)]
ClipRange = Annotated[float, Range(0.0, open_low=True), TypicalRange(1e-6, 10.0)]
KlLimit = Annotated[float, Range(0.0, open_low=True), TypicalRange(high=100.0)]
EntropyCoefficient = Annotated[float, TypicalRange(high=1.0)]
Seed = Annotated[int, Range(0, 2**31 - 1)]
Name = Annotated[str, NotEmpty()]


@cache
def constraints(cls: type[Any]) -> dict[str, Constraint]:
    """Constraints by field of a schema class."""
    by_field = {name: constraint_from_hint(hint) for name, hint in get_type_hints(cls, include_extras=True).items()}
    return {name: constraint for name, constraint in by_field.items() if constraint is not None}


@cache
def typical_ranges(cls: type[Any]) -> dict[str, TypicalRange]:
    """Usual ranges by field of a schema class."""
    hints = get_type_hints(cls, include_extras=True).items()
    return {name: usual for name, hint in hints for usual in find_metadata(hint) if isinstance(usual, TypicalRange)}


def constraint_from_hint(hint: Any) -> Constraint | None:
    """Return the constraint annotated to a type, or to a member of a union."""
    return next((part for part in find_metadata(hint) if not isinstance(part, TypicalRange | Mark)), None)
