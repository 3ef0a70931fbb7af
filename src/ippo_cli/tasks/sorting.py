"""Sorting task (built in): write random letters in alphabetical order; each agent writes its part."""

from __future__ import annotations

import math
import random

from ippo_cli.config.schema import SortingConfig
from ippo_cli.tasks.unique_examples import check_num_examples, draw_distinct, split_examples
from ippo_cli.types import Example


def sorting_examples(config: SortingConfig, seed: int) -> tuple[list[Example], list[Example]]:
    """Return training and held-out examples with the fields `letters`, `sorted`, `low` and `high` (halves of `sorted`).

    All examples are distinct arrangements of `length` letters, so training and held-out examples are disjoint.
    """
    alphabet = sorted(set(config.alphabet))
    possible = math.perm(len(alphabet), config.length) if config.length <= len(alphabet) else 0
    unit = f"arrangements of {config.length} of {len(alphabet)} letters"
    sizes = config.train_size, config.eval_size
    check_num_examples(possible, unit, *sizes, "lower the sizes, or use a longer task.alphabet")
    source = random.Random(f"sorting {seed}")
    arrangements = draw_distinct(lambda: "".join(source.sample(alphabet, config.length)), sum(sizes))
    return split_examples([_example(letters) for letters in arrangements], *sizes)


def _example(letters: str) -> Example:
    ordered = "".join(sorted(letters))
    half = (len(ordered) + 1) // 2
    return {"letters": letters, "sorted": ordered, "low": ordered[:half], "high": ordered[half:]}
