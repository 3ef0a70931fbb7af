"""Relay task: the second agent needs the first agent's response for the correct answer."""

from __future__ import annotations

import random
from collections import Counter
from itertools import product

from ippo_cli.config.schema import RelayConfig
from ippo_cli.tasks.unique_examples import check_num_examples, split_examples
from ippo_cli.types import Example


def relay_examples(config: RelayConfig, seed: int) -> tuple[list[Example], list[Example]]:
    """Return distinct training and held-out examples with the fields `hidden`, `own`, `next` and `later`.

    The first agent reads the letter `hidden` and writes its successor `next` (cyclic). The second agent reads its `own`
    letter and writes `later`: of `next` and `own`, the letter that comes later in the alphabet.
    """
    examples = _all_examples(config)
    sizes = config.train_size, config.eval_size
    check_num_examples(len(examples), "pairs of letters", *sizes, "lower the sizes, or use a longer task.alphabet")
    random.Random(f"relay {seed}").shuffle(examples)
    return split_examples(examples, *sizes)


def best_parallel_score(config: RelayConfig) -> float:
    """Return the best accuracy of a second agent that reads only its own letter, over all pairs of letters.

    It writes the most frequent correct letter for its own letter. With n letters this is (n + 1) / 2n.
    """
    examples = _all_examples(config)
    right = Counter((example["own"], example["later"]) for example in examples)
    best = {own: max(count for (letter, _), count in right.items() if letter == own) for own, _ in right}
    return sum(best.values()) / len(examples)


def _all_examples(config: RelayConfig) -> list[Example]:
    letters = sorted(set(config.alphabet))
    following = dict(zip(letters, letters[1:] + letters[:1], strict=True))
    return [
        {"hidden": hidden, "own": own, "next": following[hidden], "later": max(following[hidden], own)}
        for hidden, own in product(letters, letters)
    ]
