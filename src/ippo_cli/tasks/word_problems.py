"""Word problems of two steps, made from templates: a small pretrained model gets next to none of them right."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from ippo_cli.types import Example

TRAIN, HELD_OUT = 2000, 200
NAMES = ("Ada", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jonas", "Kira", "Leo")
THINGS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pencils", "shells", "stamps", "stickers")
SMALLEST = 2
Numbers = tuple[int, int, int]
Problem = tuple[str, Callable[[int, int, int], tuple[int, int]], Numbers]

# What is asked of the numbers a, b and c, the results of both steps, and how large each number may be: factors are
# small. An answer below 1 is no problem: other numbers are drawn.
PROBLEMS: tuple[Problem, ...] = (
    (
        "{name} has {a} {things}, finds {b} more and gives away {c}. How many are left?",
        lambda a, b, c: (a + b, a + b - c),
        (20, 20, 20),
    ),
    (
        "{name} buys {a} boxes of {b} {things} and loses {c}. How many are left?",
        lambda a, b, c: (a * b, a * b - c),
        (10, 10, 20),
    ),
    (
        "{name} has {a} {things} and buys {b} bags of {c}. How many is that in all?",
        lambda a, b, c: (b * c, a + b * c),
        (20, 10, 10),
    ),
    (
        "There are {a} {things} on a table. {name} takes {b} and later {c}. How many remain?",
        lambda a, b, c: (a - b, a - b - c),
        (20, 20, 20),
    ),
    (
        "{name} sells {a} {things} on Monday and {b} on Tuesday, for {c} dollars each. How many dollars is that?",
        lambda a, b, c: (a + b, (a + b) * c),
        (10, 10, 5),
    ),
    (
        "{name} has {a} {things}, keeps {b} and sells the rest for {c} dollars each. How many dollars is that?",
        lambda a, b, c: (a - b, (a - b) * c),
        (20, 20, 5),
    ),
    (
        "{name} needs {a} {things}, has {b} and gets {c}. How many are still missing?",
        lambda a, b, c: (a - b, a - b - c),
        (20, 20, 20),
    ),
    (
        "{name} reads {a} pages a day for {b} days, and then {c} more. How many pages is that?",
        lambda a, b, c: (a * b, a * b + c),
        (10, 10, 20),
    ),
)
OTHERS: tuple[Problem, ...] = (
    (
        "{a} children bring {b} {things} each, and {name} brings {c}. How many {things} are there?",
        lambda a, b, c: (a * b, a * b + c),
        (10, 10, 20),
    ),
    (
        "A bus carries {a} people. {b} get on, and then {c} get off. How many people does it carry now?",
        lambda a, b, c: (a + b, a + b - c),
        (20, 20, 20),
    ),
    (
        "{name} earns {a} dollars an hour, works {b} hours and spends {c} dollars. How many dollars are left?",
        lambda a, b, c: (a * b, a * b - c),
        (10, 10, 20),
    ),
)


def train() -> list[Example]:
    """2000 problems."""
    return _examples(PROBLEMS, TRAIN + HELD_OUT)[HELD_OUT:]


def held_out() -> list[Example]:
    """200 problems of the same templates, with numbers that no training example of the template has."""
    return _examples(PROBLEMS, TRAIN + HELD_OUT)[:HELD_OUT]


def other_templates() -> list[Example]:
    """200 problems of templates that are not trained on."""
    return _examples(OTHERS, HELD_OUT)


def _examples(problems: Sequence[Problem], count: int) -> list[Example]:
    """The same for every run, whatever its seed: scores of runs can be compared."""
    source = random.Random(f"word problems {len(problems)}")
    drawn: dict[tuple[int, int, int, int], None] = {}  # a dict keeps the order of drawing
    while len(drawn) < count:
        which = len(drawn) % len(problems)
        _, results, largest = problems[which]
        a, b, c = (source.randint(SMALLEST, number) for number in largest)
        if results(a, b, c)[-1] >= 1:
            drawn[which, a, b, c] = None
    return [_example(problems[which], a, b, c, source) for which, a, b, c in drawn]


def _example(problem: Problem, a: int, b: int, c: int, source: random.Random) -> Example:
    text, results, _ = problem
    question = text.format(name=source.choice(NAMES), things=source.choice(THINGS), a=a, b=b, c=c)
    steps = results(a, b, c)
    return {"question": question, "steps": list(steps), "answer": steps[-1]}
