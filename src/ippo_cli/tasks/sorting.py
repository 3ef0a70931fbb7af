"""The embedded task: letters in random order are to be written in alphabetical order, each agent writing its share."""

from __future__ import annotations

import math
import random

from ippo_cli.config.schema import SortingConfig
from ippo_cli.tasks.unique_examples import distinct, refuse_more_than, split
from ippo_cli.types import Example


def sorting_examples(config: SortingConfig, seed: int) -> tuple[list[Example], list[Example]]:
    """Training and held-out examples with the fields `letters`, `sorted`, `low` (first half) and `high` (second half).

    All examples are distinct arrangements of `length` letters, so no held-out one is ever trained on.
    """
    alphabet = sorted(set(config.alphabet))
    possible = math.perm(len(alphabet), config.length) if config.length <= len(alphabet) else 0
    what = f"arrangements of {config.length} of {len(alphabet)} letters"
    sizes = config.train_size, config.eval_size
    refuse_more_than(possible, what, *sizes, "lower the sizes, or use a longer task.alphabet")
    source = random.Random(f"sorting {seed}")
    arrangements = distinct(lambda: "".join(source.sample(alphabet, config.length)), sum(sizes))
    return split([_example(letters) for letters in arrangements], *sizes)


def _example(letters: str) -> Example:
    ordered = "".join(sorted(letters))
    half = (len(ordered) + 1) // 2
    return {"letters": letters, "sorted": ordered, "low": ordered[:half], "high": ordered[half:]}
