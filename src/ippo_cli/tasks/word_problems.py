"""Two-step word problems from 870 templates that combine the same phrases.

Example: "Ada has 12 eggs, finds 5 and then loses 4. How many are there now?": `12 + 5 = 17, 17 - 4 = 13`.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import permutations, product

from ippo_cli.types import Example

Numbers = tuple[int, ...]
TRAIN, HELD_OUT = 4000, 200
NAMES = ("Ada", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Hugo", "Ida", "Jonas", "Kira", "Leo")
THINGS = ("apples", "books", "cards", "coins", "eggs", "marbles", "pencils", "shells", "stamps", "stickers")
SMALLEST, LARGEST, LARGEST_FACTOR = 2, 20, 10

AMOUNTS = ("has {} {things}", "begins with {} {things}", "takes {} {things} out of a box")
PRODUCTS = ("buys {} bags of {} {things}", "fills {} boxes with {} {things} each")
GAINS = ("finds {}", "is given {}", "wins {}", "picks up {}", "makes {} more")
LOSSES = ("loses {}", "gives away {}", "sells {}", "throws away {}", "lends {} to a friend")
QUESTIONS = ("How many are there now?", "How many does {name} have in the end?", "How many {things} is that?")
ONE_OF_PRODUCTS = 3  # one problem in three begins with a product, although few templates do


@dataclass(frozen=True)
class Template:
    """A text with three numbers, and the operators between the first two and between their result and the third."""

    text: str
    signs: tuple[str, str]

    @property
    def largest(self) -> tuple[int, int, int]:
        """The largest value of each number; factors are small."""
        first = LARGEST_FACTOR if self.signs[0] == "*" else LARGEST
        return first, first, LARGEST


def _templates() -> list[Template]:
    changes = [(phrase, "+") for phrase in GAINS] + [(phrase, "-") for phrase in LOSSES]
    sums = [
        Template(f"{{name}} {amount}, {change} and then {next_change}. {question}", (sign, next_sign))
        for amount, ((change, sign), (next_change, next_sign)), question in product(
            AMOUNTS, permutations(changes, 2), QUESTIONS
        )
    ]
    products = [
        Template(f"{{name}} {begin} and then {change}. {question}", ("*", sign))
        for begin, (change, sign), question in product(PRODUCTS, changes, QUESTIONS)
    ]
    return [*sums, *products]


TEMPLATES = _templates()
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
OTHER_TEMPLATES = random.Random("other templates").sample(TEMPLATES, len(TEMPLATES) // 10)
"""Held-out templates: their phrases occur in training templates, but their combinations do not."""
TRAINED_TEMPLATES = [template for template in TEMPLATES if template not in OTHER_TEMPLATES]

OTHER_WORDS = (
    Template("{} children bring {} {things} each, and {name} brings {}. How many {things} are there?", ("*", "+")),
    Template("A bus carries {} people. {} get on, and {} get off. How many people does it carry now?", ("+", "-")),
    Template(
        "{name} earns {} dollars an hour, works {} hours and spends {} dollars. How many dollars are left?", ("*", "-")
    ),
)
"""Held-out templates with phrases that do not occur in training."""


def train() -> list[Example]:
    """Return 4000 problems."""
    return _problems("train", TRAINED_TEMPLATES, TRAIN, without=_number_tuples(held_out()))


def held_out() -> list[Example]:
    """Return 200 problems of training templates, with number triples that do not occur in training."""
    return _problems("held out", TRAINED_TEMPLATES, HELD_OUT)


def other_templates() -> list[Example]:
    """Return 200 problems of held-out combinations of training phrases, with new number triples."""
    return _problems("other templates", OTHER_TEMPLATES, HELD_OUT, without=_number_tuples(train()))


def other_words() -> list[Example]:
    """Return 200 problems with phrases that do not occur in training."""
    return _problems("other words", OTHER_WORDS, HELD_OUT)


def _number_tuples(problems: Sequence[Example]) -> set[Numbers]:
    return {tuple(problem["numbers"]) for problem in problems}


def _problems(
    name: str, templates: Sequence[Template], count: int, without: Collection[Numbers] = frozenset()
) -> list[Example]:
    """Return problems with steps of at least 1 and number triples not in `without`.

    They do not depend on the run's seed, so that scores of runs are comparable.
    """
    source = random.Random(f"word problems {name}")
    products = [template for template in templates if template.signs[0] == "*"]
    sums = [template for template in templates if template.signs[0] != "*"]
    found: dict[str, Example] = {}  # by text: problems are distinct
    while len(found) < count:
        template = source.choice(sums if len(found) % ONE_OF_PRODUCTS else products)
        numbers = tuple(source.randint(SMALLEST, largest) for largest in template.largest)
        first = OPERATORS[template.signs[0]](numbers[0], numbers[1])
        answer = OPERATORS[template.signs[1]](first, numbers[2])
        if min(first, answer) < 1 or numbers in without:
            continue
        question = template.text.format(*numbers, name=source.choice(NAMES), things=source.choice(THINGS))
        found[question] = {
            "question": question,
            "numbers": list(numbers),
            "steps": [first, answer],
            "answer": answer,
        }
    return list(found.values())
