"""Calculator task: products that a small model cannot compute, and a tool that can."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the processes that call tools import this module, and start faster without torch
    from ippo_cli.types import Example

FACTORS = range(12, 100)
TRAIN, HELD_OUT = 1000, 100
ANSWERED = ((17, 34), (62, 91))


def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a * b


def train() -> list[Example]:
    """Return 1000 pairs of factors."""
    return _examples()[HELD_OUT:]


def held_out() -> list[Example]:
    """Return 100 pairs of factors that are not among the training examples."""
    return _examples()[:HELD_OUT]


def _examples() -> list[Example]:
    """The examples do not depend on the run's seed, so that scores of runs are comparable."""
    pairs = [(a, b) for a in FACTORS for b in FACTORS if (a, b) not in ANSWERED]
    return [_example(a, b) for a, b in random.Random("calculator").sample(pairs, TRAIN + HELD_OUT)]


def _example(a: int, b: int) -> Example:
    """A question after two answered ones, which show a model without training on tools how a call looks."""
    examples = [message for pair in ANSWERED for message in _answered_question(*pair)]
    return {"a": a, "b": b, "product": a * b, "prompt": [*examples, _question(a, b)]}


def _question(a: int, b: int) -> dict[str, str]:
    return {"role": "user", "content": f"What is {a} * {b}?"}


def _answered_question(a: int, b: int) -> list[dict[str, str]]:
    call = json.dumps({"name": "multiply", "arguments": {"a": a, "b": b}})
    texts = [("assistant", call), ("user", str(a * b)), ("assistant", str(a * b))]
    return [_question(a, b), *({"role": role, "content": text} for role, text in texts)]
