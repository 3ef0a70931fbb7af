"""Small built-in tasks without data: sorting, relay, signalling, and probes of letters and grids."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import product

from ippo_cli.config.schema import GridConfig, LettersConfig, RelayConfig, SignallingConfig, SortingConfig
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
    return split_examples([_sorting_example(letters) for letters in arrangements], *sizes)


def _sorting_example(letters: str) -> Example:
    ordered = "".join(sorted(letters))
    half = (len(ordered) + 1) // 2
    return {"letters": letters, "sorted": ordered, "low": ordered[:half], "high": ordered[half:]}


def relay_examples(config: RelayConfig, seed: int) -> tuple[list[Example], list[Example]]:
    """Return distinct training and held-out examples with the fields `hidden`, `own`, `next` and `later`.

    The first agent reads the letter `hidden` and writes its successor `next` (cyclic). The second agent reads its `own`
    letter and writes `later`: of `next` and `own`, the letter that comes later in the alphabet.
    """
    examples = _relay_examples(config)
    sizes = config.train_size, config.eval_size
    check_num_examples(len(examples), "pairs of letters", *sizes, "lower the sizes, or use a longer task.alphabet")
    random.Random(f"relay {seed}").shuffle(examples)
    return split_examples(examples, *sizes)


def best_parallel_score(config: RelayConfig) -> float:
    """Return the best accuracy of a second agent that reads only its own letter, over all pairs of letters.

    It writes the most frequent correct letter for its own letter. With n letters this is (n + 1) / 2n.
    """
    examples = _relay_examples(config)
    right = Counter((example["own"], example["later"]) for example in examples)
    best = {own: max(count for (letter, _), count in right.items() if letter == own) for own, _ in right}
    return sum(best.values()) / len(examples)


def _relay_examples(config: RelayConfig) -> list[Example]:
    letters = sorted(set(config.alphabet))
    following = dict(zip(letters, letters[1:] + letters[:1], strict=True))
    return [
        {"hidden": hidden, "own": own, "next": following[hidden], "later": max(following[hidden], own)}
        for hidden, own in product(letters, letters)
    ]


def signalling_examples(config: SignallingConfig, seed: int) -> tuple[list[Example], list[Example]]:
    """Return training and held-out examples with the fields `signal`, `message` and `act`; signals are balanced.

    `message` and `act` are random and independent of the signal: they show the format of responses, not the solution.
    Held-out examples contain the same signals, so they measure communication, not generalization.
    """
    source = random.Random(f"signalling {seed}")
    signals = sorted(set(config.signals))
    held_out = _signals(config, signals, config.eval_size, source)
    return _signals(config, signals, config.train_size, source), held_out


def _signals(config: SignallingConfig, signals: list[str], count: int, source: random.Random) -> list[Example]:
    return [
        {
            "signal": signals[row % len(signals)],
            "message": "".join(source.choices(sorted(set(config.symbols)), k=config.message_length)),
            "act": source.choice(signals),
        }
        for row in range(count)
    ]


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
