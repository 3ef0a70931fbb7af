"""What a value must be beyond its type: written at its field in the schema, checked and documented from there."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Protocol, get_args, get_origin, get_type_hints


class Constraint(Protocol):
    def violation(self, value: Any) -> tuple[str, str] | None:
        """The rule and what would work, where this value breaks it; values of other types are let through."""
        ...


@dataclass(frozen=True)
class Range:
    """Numbers of an interval; infinite limits are open."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False
    open_high: bool = False
    at_low: str = ""  # what somebody who typed the lower limit may want instead

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
        return f"is out of range; it must lie in {self._interval()}", remedy


@dataclass(frozen=True)
class TypicalRange:
    """The interval of values that users mean; others are allowed, with a warning. 0 switches something off."""

    low: float = 0.0
    high: float = math.inf

    def warning(self, value: Any) -> str | None:
        """How the value differs from usual ones; None where it does not."""
        if not isinstance(value, int | float) or value == 0 or self.low <= abs(value) <= self.high:
            return None
        return f"usual values are {f'at most {self.high:g}' if abs(value) > self.high else f'at least {self.low:g}'}"


@dataclass(frozen=True)
class OneOf:
    """Texts that are known; where code has a member for each, an enumeration is better."""

    choices: tuple[str, ...]

    def __str__(self) -> str:
        return ""  # the field's comment explains them one by one

    def violation(self, value: Any) -> tuple[str, str] | None:
        return None if value in self.choices else ("is not known", "use one of " + " ".join(self.choices))


@dataclass(frozen=True)
class NotEmpty:
    """What names a file, a folder or anything else."""

    def __str__(self) -> str:
        return ""

    def violation(self, value: Any) -> tuple[str, str] | None:
        return ("names nothing", "give a file, a folder or a name") if value in ("", []) else None


PositiveInt = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
PositiveFloat = Annotated[float, Range(0.0, open_low=True)]
NonNegativeFloat = Annotated[float, Range(0.0)]
UnitFloat = Annotated[float, Range(0.0, 1.0)]
LearningRate = Annotated[float, Range(0.0, 1.0), TypicalRange(1e-9, 0.03)]
PositiveLearningRate = Annotated[float, Range(0.0, 1.0, open_low=True), TypicalRange(1e-9, 0.1)]
Coefficient = Annotated[float, Range(0.0), TypicalRange(high=10.0)]
WeightDecay = Annotated[float, Range(0.0), TypicalRange(high=1.0)]
Epsilon = Annotated[float, Range(0.0, open_low=True), TypicalRange(high=1e-2)]
GradNorm = Annotated[float, Range(0.0), TypicalRange(1e-3, 1e4)]
GREEDY = (
    "a policy without randomness learns nothing, and greedy decoding is for evaluation: evaluation.greedy=true (and "
    "evaluation.sampled=false for nothing else), or greedy=true in ippo-chat"
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
    """The constraint of each field of a schema class that has one."""
    by_field = {name: constraint_from_hint(hint) for name, hint in get_type_hints(cls, include_extras=True).items()}
    return {name: constraint for name, constraint in by_field.items() if constraint is not None}


@cache
def typical_ranges(cls: type[Any]) -> dict[str, TypicalRange]:
    """The usual values of each field of a schema class that has some."""
    hints = get_type_hints(cls, include_extras=True).items()
    return {name: usual for name, hint in hints for usual in _find_metadata(hint) if isinstance(usual, TypicalRange)}


def constraint_from_hint(hint: Any) -> Constraint | None:
    """What is written with a type, or with the type beside `None`."""
    return next((part for part in _find_metadata(hint) if not isinstance(part, TypicalRange)), None)


def _find_metadata(hint: Any) -> tuple[Any, ...]:
    if get_origin(hint) is Annotated:
        return hint.__metadata__
    return next((found for part in get_args(hint) if (found := _find_metadata(part))), ())
