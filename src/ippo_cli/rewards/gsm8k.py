"""`reward=gsm8k`: whether a response's final number equals the reference answer's."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from ippo_cli.config.schema import Gsm8kRewardConfig, NumberMatch
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.references import check_references, reference_answers, render_reference
from ippo_cli.rewards.response_adapter import Agents, ResponseRewardAdapter, Responses, adapt_response_reward
from ippo_cli.rewards.rows import mean_over_agents
from ippo_cli.types import Example

# Optional sign and currency, digits with optional commas, and decimals. The minus in `5-3` is not a sign.
NUMBER = r"(?:\$?(?<![0-9])[-\u2212])?\$?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)"
_ANSWER = re.compile(rf"####[ \t]*({NUMBER})")
_ANY_NUMBER = re.compile(NUMBER)
_GROUPS = re.compile(r"[0-9]+|[0-9]{1,3}(?:,[0-9]{2,3})*,[0-9]{3}")  # thousands, or lakhs as in 12,34,567
_WHOLE = re.compile(rf"[€£¥]?({NUMBER})[ \t]*(?:[%€£¥]|\\%)?\.?")  # a number with an optional currency or percent sign
REMEDY = "use reward=math for expressions, or exclude such rows with task.filter"


class Gsm8kReward:
    """1 for the correct number, 0 for a wrong or missing one; the team's reward is the mean over its agents.

    Agents without a reference answer receive the team's reward.

    `strict` reads the number after the last `####`, `flexible` the last number of the response; both are logged.
    For reference `1024`, `so 7. #### 1,024.00` is correct by both rules, `the answer is 1024` only by `flexible`.

    The rules are verl's (verl/utils/reward_score/gsm8k.py), but values are compared as numbers; verl compares the
    strings without commas.
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
    """The number after the last `####` that is followed by a number."""
    answers = _ANSWER.findall(text)
    return _parse_number(answers[-1]) if answers else None


def last_number(text: str) -> Decimal | None:
    """The last number of the text."""
    numbers = _ANY_NUMBER.findall(text)
    return _parse_number(numbers[-1]) if numbers else None


def reference_number(text: str) -> Decimal | None:
    """The number of a reference answer: a solution that ends with `#### number`, or only a number.

    None for an answer that is not just a number, such as `3/4`, `20 m^2` or `10^6`: its last number is a different
    value. Also None if commas do not separate thousands: `1,5` is a decimal or two numbers.
    """
    number = _WHOLE.fullmatch(text.rsplit("####", 1)[-1].strip())
    if number is None:
        return None
    whole = number[1].lstrip("$-\u2212").partition(".")[0].rstrip(",")
    return _parse_number(number[1]) if not whole or _GROUPS.fullmatch(whole) else None


def check_number_references(answers: Mapping[str, str], examples: Sequence[Example]) -> list[str]:
    """Warnings about reference answers that are not numbers; raises `ConfigError` if none of an agent's is."""

    def find_unreadable(texts: list[str]) -> list[bool]:
        return [reference_number(text) is None for text in texts]

    return check_references(answers, examples, find_unreadable, rule="a number", remedy=REMEDY)


def _parse_number(number: str) -> Decimal:
    """`-$1,024.00` as -1024."""
    return Decimal(number.replace("\u2212", "-").replace("$", "").replace(",", ""))


def _score_numbers(wanted: Sequence[Decimal | None], numbers: Iterable[Decimal | None]) -> list[float]:
    """1 for equal numbers, else 0; NaN (no score) if the reference has no number."""
    return [
        math.nan if right is None else float(right == number) for right, number in zip(wanted, numbers, strict=True)
    ]


def build_gsm8k_reward(config: Gsm8kRewardConfig, agents: Agents) -> ResponseRewardAdapter:
    """Build the reward of the configuration."""
    return adapt_response_reward(Gsm8kReward(reference_answers(config, agents), config.match), agents)
