"""Examples that are all different, split into training and held-out ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ippo_cli.config.errors import ConfigError
from ippo_cli.types import Example

T = TypeVar("T")


def check_num_examples(possible: int, unit: str, train_size: int, eval_size: int, remedy: str) -> None:
    """Raise `ConfigError` where more examples are asked for than are `possible`; `what` names these."""
    if train_size + eval_size > possible:
        raise ConfigError(
            f"task.train_size={train_size} task.eval_size={eval_size}",
            f"ask for more examples than the {possible} {unit}",
            remedy,
        )


def draw_distinct(draw: Callable[[], T], count: int) -> list[T]:
    """`count` draws without repetitions, in their order: more of them never change the first ones."""
    drawn: dict[T, None] = {}
    while len(drawn) < count:
        drawn[draw()] = None
    return list(drawn)


def split_examples(examples: Sequence[Example], train_size: int, eval_size: int) -> tuple[list[Example], list[Example]]:
    """Training and held-out examples; the latter come first, so that they stay when more are trained on."""
    return list(examples[eval_size : eval_size + train_size]), list(examples[:eval_size])
