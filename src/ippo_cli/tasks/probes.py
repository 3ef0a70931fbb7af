"""Probe tasks: small tasks on which an algorithm learns from scratch within seconds if it works."""

from __future__ import annotations

import random

from ippo_cli.config.schema import GridConfig, LettersConfig
from ippo_cli.tasks.unique_examples import check_num_examples, draw_distinct, split_examples
from ippo_cli.types import Example

Cell = tuple[int, int]  # x to the right, y upwards, from 0
COLUMNS = "abcdefghi"


def letters_examples(config: LettersConfig, seed: int) -> tuple[list[Example], list[Example]]:
    """Return training and held-out examples with the fields `letters`, `last` (last letter) and `next` (its successor).

    An answer template without a field gives a constant probe; `{last}` or `{next}` gives a conditional one.
    """
    alphabet = sorted(set(config.alphabet))
    source = random.Random(f"probe letters {seed}")
    possible, unit = len(alphabet) ** config.length, f"strings of {config.length} letters"
    sizes = config.train_size, config.eval_size
    check_num_examples(possible, unit, *sizes, "lower the sizes")
    strings = draw_distinct(lambda: "".join(source.choices(alphabet, k=config.length)), sum(sizes))
    following = dict(zip(alphabet, alphabet[1:] + alphabet[:1], strict=True))
    examples: list[Example] = [{"letters": text, "last": text[-1], "next": following[text[-1]]} for text in strings]
    return split_examples(examples, *sizes)


def grid_examples(config: GridConfig, seed: int) -> tuple[list[Example], list[Example]]:
    """Return training and held-out walks between two different cells of a grid.

    Cells have chess board names. Fields: `size`, `start` (such as `a3`), `goal` (`c2`), and the moves of a shortest
    walk: `horizontal` (`rr`) and `vertical` (`d`).
    """
    cells = [(x, y) for x in range(config.size) for y in range(config.size)]
    source = random.Random(f"probe grid {seed}")
    possible, unit = len(cells) * (len(cells) - 1), f"pairs of cells of a {config.size} x {config.size} grid"
    sizes = config.train_size, config.eval_size
    check_num_examples(possible, unit, *sizes, "lower the sizes")
    walks = draw_distinct(lambda: tuple(source.sample(cells, 2)), sum(sizes))
    return split_examples([_walk_example(config.size, start, goal) for start, goal in walks], *sizes)


def _walk_example(size: int, start: Cell, goal: Cell) -> Example:
    right, up = goal[0] - start[0], goal[1] - start[1]
    return {
        "size": size,
        "start": f"{COLUMNS[start[0]]}{start[1] + 1}",
        "goal": f"{COLUMNS[goal[0]]}{goal[1] + 1}",
        "horizontal": "r" * right or "l" * -right,
        "vertical": "u" * up or "d" * -up,
    }
