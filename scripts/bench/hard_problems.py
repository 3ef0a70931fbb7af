"""Word problems of which two of three are too hard for a small model, for `curriculum.py`."""

from __future__ import annotations

import random

from ippo_cli.tasks import word_problems
from ippo_cli.types import Example

SOLVABLE = 32
TOO_HARD = 64  # products of numbers with three digits; the answers are longer than `rollout.max_new_tokens`


def train() -> list[Example]:
    """Return the first training problems of `task=word_problems`, and problems with large numbers."""
    source = random.Random("hard problems")
    rows = [{**row, "kind": "solvable"} for row in word_problems.train()[:SOLVABLE]]
    for _ in range(TOO_HARD):
        numbers = [source.randint(100, 999) for _ in range(3)]
        first = numbers[0] * numbers[1]
        text = f"{{name}} {source.choice(word_problems.PRODUCTS)} and then {source.choice(word_problems.LOSSES)}."
        question = text.format(*numbers, name=source.choice(word_problems.NAMES), things="coins")
        steps = [first, first - numbers[2]]
        question += " How many are there now?"
        rows.append({"question": question, "numbers": numbers, "steps": steps, "answer": steps[-1], "kind": "too hard"})
    return rows
