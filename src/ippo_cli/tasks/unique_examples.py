"""Draw distinct examples, and split them into training and held-out examples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from ippo_cli.config.errors import ConfigError
from ippo_cli.types import Example

T = TypeVar("T")


def check_num_examples(possible: int, unit: str, train_size: int, eval_size: int, remedy: str) -> None:
    """Raise `ConfigError` if more examples are requested than are possible; `unit` describes them."""
    if train_size + eval_size > possible:
        raise ConfigError(
            f"task.train_size={train_size} task.eval_size={eval_size}",
            f"request more examples than the {possible} {unit}",
            remedy,
        )


def draw_distinct(draw: Callable[[], T], count: int) -> list[T]:
    """Return `count` distinct draws in order; a larger count only appends draws."""
    distinct: dict[T, None] = {}
    while len(distinct) < count:
        distinct[draw()] = None
    return list(distinct)


def split_examples(examples: Sequence[Example], train_size: int, eval_size: int) -> tuple[list[Example], list[Example]]:
    """Return training and held-out examples; held-out ones come first, so `train_size` does not change them."""
    return list(examples[eval_size : eval_size + train_size]), list(examples[:eval_size])
