"""Examples that are all different, split into training and held-out ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from ippo_cli.config.errors import ConfigError
from ippo_cli.types import Example

T = TypeVar("T")


class Sizes(Protocol):
    """How many examples a task asks for."""

    train_size: int
    eval_size: int


def refuse_more_than(possible: int, what: str, sizes: Sizes, remedy: str) -> None:
    """Raise `ConfigError` where more examples are asked for than are `possible`; `what` names these."""
    if sizes.train_size + sizes.eval_size > possible:
        raise ConfigError(
            f"task.train_size={sizes.train_size} task.eval_size={sizes.eval_size}",
            f"ask for more examples than the {possible} {what}",
            remedy,
        )


def distinct(draw: Callable[[], T], sizes: Sizes) -> list[T]:
    """As many draws as are asked for, without repetitions, in their order: more of them never change the first ones."""
    drawn: dict[T, None] = {}
    while len(drawn) < sizes.train_size + sizes.eval_size:
        drawn[draw()] = None
    return list(drawn)


def split(examples: Sequence[Example], sizes: Sizes) -> tuple[list[Example], list[Example]]:
    """Training and held-out examples; the latter come first, so that they stay when more are trained on."""
    last = sizes.eval_size + sizes.train_size
    return list(examples[sizes.eval_size : last]), list(examples[: sizes.eval_size])
