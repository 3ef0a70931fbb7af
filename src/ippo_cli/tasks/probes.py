"""Probes: small worlds in which an algorithm shows within seconds whether it learns from a score, from scratch."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TypeVar

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import GridConfig, LettersConfig
from ippo_cli.types import Example

T = TypeVar("T")
Cell = tuple[int, int]  # x to the right, y upwards, from 0
FILES = "abcdefghi"


def letters_examples(config: LettersConfig, seed: int) -> tuple[list[Example], list[Example]]:
    """Training and held-out examples with the fields `letters`, their `last` one, and the `next` one after that.

    With an answer that names no field the probe is a constant one; with `{last}` or `{next}` it is conditional.
    """
    alphabet = sorted(set(config.alphabet))
    source = random.Random(f"probe letters {seed}")
    _refuse_more_than(len(alphabet) ** config.length, config, f"strings of {config.length} letters")
    strings = _distinct(
        lambda: "".join(source.choices(alphabet, k=config.length)), config.train_size + config.eval_size
    )
    following = dict(zip(alphabet, alphabet[1:] + alphabet[:1], strict=True))
    examples: list[Example] = [{"letters": text, "last": text[-1], "next": following[text[-1]]} for text in strings]
    return examples[config.eval_size :], examples[: config.eval_size]


def grid_examples(config: GridConfig, seed: int) -> tuple[list[Example], list[Example]]:
    """Training and held-out walks: two different cells, and the letters of a shortest walk along each axis.

    Cells are named as on a chess board. The fields are `size`, `start` (such as `a3`), `goal` (`c2`), and the letters
    of a shortest walk: `horizontal` (`rr`) and `vertical` (`d`).
    """
    cells = [(x, y) for x in range(config.size) for y in range(config.size)]
    source = random.Random(f"probe grid {seed}")
    _refuse_more_than(len(cells) * (len(cells) - 1), config, f"pairs of cells of a {config.size} x {config.size} grid")
    walks = _distinct(lambda: tuple(source.sample(cells, 2)), config.train_size + config.eval_size)
    examples = [_walk(config.size, start, goal) for start, goal in walks]
    return examples[config.eval_size :], examples[: config.eval_size]


def _walk(size: int, start: Cell, goal: Cell) -> Example:
    right, up = goal[0] - start[0], goal[1] - start[1]
    return {
        "size": size,
        "start": f"{FILES[start[0]]}{start[1] + 1}",
        "goal": f"{FILES[goal[0]]}{goal[1] + 1}",
        "horizontal": "r" * right or "l" * -right,
        "vertical": "u" * up or "d" * -up,
    }


def _distinct(draw: Callable[[], T], wanted: int) -> list[T]:
    """Draws without repetitions, in their order: more of them never change the first ones."""
    drawn: dict[T, None] = {}
    while len(drawn) < wanted:
        drawn[draw()] = None
    return list(drawn)


def _refuse_more_than(possible: int, config: LettersConfig | GridConfig, what: str) -> None:
    if config.train_size + config.eval_size > possible:
        raise ConfigError(
            f"task.train_size={config.train_size} task.eval_size={config.eval_size}",
            f"ask for more examples than the {possible} {what}",
            "lower the sizes",
        )
