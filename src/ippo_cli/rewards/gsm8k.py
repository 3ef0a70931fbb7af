"""`reward=gsm8k`: whether the number that a response ends with is the reference answer's."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from ippo_cli.config.schema import NumberMatch
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.references import check_references, render_reference
from ippo_cli.rewards.response_adapter import Responses
from ippo_cli.rewards.rows import mean_over_agents
from ippo_cli.types import Example

# An optional sign and currency, digits with or without commas between them, and decimals. The minus in `5-3` is none.
NUMBER = r"(?:\$?(?<![0-9])[-\u2212])?\$?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)"
_ANSWER = re.compile(rf"####[ \t]*({NUMBER})")
_ANY_NUMBER = re.compile(NUMBER)
_GROUPS = re.compile(r"[0-9]+|[0-9]{1,3}(?:,[0-9]{2,3})*,[0-9]{3}")  # thousands, also lakhs as in 12,34,567
_WHOLE = re.compile(rf"[€£¥]?({NUMBER})[ \t]*(?:[%€£¥]|\\%)?\.?")  # a number with a currency or percent sign at most
REMEDY = "use reward=math for expressions, or leave such rows out with task.filter"


class Gsm8kReward:
    """1 for a right number, 0 for a wrong one or none; the team's reward is the mean over its agents.

    Agents without a reference answer share the team's reward.

    `strict` reads the number after the last `####`, `flexible` the last number of the response; both are reported.
    `so 7. #### 1,024.00` is right for `1024` by either rule, `the answer is 1024` by the second alone.

    The two rules are those that verl publishes (verl/utils/reward_score/gsm8k.py); numbers are compared as numbers
    here, where it compares their characters after taking commas out.
    """

    def __init__(self, answers: Mapping[str, str], match: NumberMatch) -> None:
        self.answers = answers
        self.match = match

    def validate_examples(self, examples: Sequence[Example]) -> list[str]:
        return check_number_references(self.answers, examples)

    def __call__(self, examples: Sequence[Example], responses: Responses) -> Reward:
        strict: dict[str, list[float]] = {}
        flexible: dict[str, list[float]] = {}
        for name in self.answers:
            wanted = [reference_number(render_reference(self.answers, name, example)) for example in examples]
            strict[name] = _score_numbers(wanted, map(strict_number, responses[name]))
            flexible[name] = _score_numbers(wanted, map(last_number, responses[name]))
        own = strict if self.match is NumberMatch.strict else flexible
        team = mean_over_agents(own.values())
        own = {name: own.get(name, team) for name in responses}
        return Reward(
            team=team,
            agent=own,
            parts={"strict": mean_over_agents(strict.values()), "flexible": mean_over_agents(flexible.values())},
        )


def strict_number(text: str) -> Decimal | None:
    """The number after the last `####` that a number follows."""
    answers = _ANSWER.findall(text)
    return _parse_number(answers[-1]) if answers else None


def last_number(text: str) -> Decimal | None:
    """The last number of the text."""
    numbers = _ANY_NUMBER.findall(text)
    return _parse_number(numbers[-1]) if numbers else None


def reference_number(text: str) -> Decimal | None:
    """The number of a reference answer: a solution that ends with `#### number`, or the number alone.

    None for an answer that is more than a number, such as `3/4`, `20 m^2` or `10^6`: its last number is another one.
    None as well where commas do not separate thousands: `1,5` is a decimal or two numbers.
    """
    number = _WHOLE.fullmatch(text.rsplit("####", 1)[-1].strip())
    if number is None:
        return None
    whole = number[1].lstrip("$-\u2212").partition(".")[0].rstrip(",")
    return _parse_number(number[1]) if not whole or _GROUPS.fullmatch(whole) else None


def check_number_references(answers: Mapping[str, str], examples: Sequence[Example]) -> list[str]:
    """Warnings of reference answers that are no numbers; raises `ConfigError` where none is one."""

    def find_unreadable(texts: list[str]) -> list[bool]:
        return [reference_number(text) is None for text in texts]

    return check_references(answers, examples, find_unreadable, rule="a number", remedy=REMEDY)


def _parse_number(number: str) -> Decimal:
    """`-$1,024.00` as -1024."""
    return Decimal(number.replace("\u2212", "-").replace("$", "").replace(",", ""))


def _score_numbers(wanted: Sequence[Decimal | None], numbers: Iterable[Decimal | None]) -> list[float]:
    """Whether numbers are the wanted ones; NaN, which is no score, where a reference has none."""
    return [
        math.nan if right is None else float(right == number) for right, number in zip(wanted, numbers, strict=True)
    ]
