"""The embedded task: letters in random order are to be written in alphabetical order, each agent writing its share."""

from __future__ import annotations

import math
import random

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import SortingConfig
from ippo_cli.types import Example


def sorting_examples(config: SortingConfig, seed: int) -> tuple[list[Example], list[Example]]:
    """Training and held-out examples with the fields `letters`, `sorted`, `low` (first half) and `high` (second half).

    All examples are distinct arrangements of `length` letters, so no held-out one is ever trained on.
    """
    alphabet = sorted(set(config.alphabet))
    wanted = config.train_size + config.eval_size
    possible = math.perm(len(alphabet), config.length) if config.length <= len(alphabet) else 0
    if wanted > possible:
        raise ConfigError(
            f"task.train_size={config.train_size} task.eval_size={config.eval_size}",
            f"ask for more examples than the {possible} arrangements of {config.length} of {len(alphabet)} letters",
            "lower the sizes, or use a longer task.alphabet",
        )
    source = random.Random(f"sorting {seed}")
    arrangements: dict[str, None] = {}  # a dict keeps the order of drawing
    while len(arrangements) < wanted:
        arrangements["".join(source.sample(alphabet, config.length))] = None
    examples = [_example(letters) for letters in arrangements]
    return examples[config.eval_size :], examples[: config.eval_size]


def _example(letters: str) -> Example:
    ordered = "".join(sorted(letters))
    half = (len(ordered) + 1) // 2
    return {"letters": letters, "sorted": ordered, "low": ordered[:half], "high": ordered[half:]}
