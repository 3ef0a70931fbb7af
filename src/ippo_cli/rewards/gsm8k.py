"""`reward=gsm8k`: whether a response's final number equals the reference answer's."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal

from ippo_cli.config.schema import Gsm8kRewardConfig, NumberMatch
from ippo_cli.rewards.contract import Reward, mean_over_agents
from ippo_cli.rewards.episodes import Responses
from ippo_cli.rewards.number_text import last_number, parse_single_number, strict_number
from ippo_cli.rewards.references import check_references, reference_answers, render_reference
from ippo_cli.rewards.response_adapter import Agents, ResponseRewardAdapter, adapt_response_reward
from ippo_cli.types import Example

REMEDY = "use reward=math for expressions, or exclude such rows with task.filter"


class Gsm8kReward:
    """1 for the correct number, 0 for a wrong or missing one; the team's reward is the mean over its agents.

    Agents without a reference answer receive the team's reward.

    `strict` reads the number after the last `####`, `flexible` the last number of the response; both are logged.
    For reference `1024`, `so 7. #### 1,024.00` is correct by both rules, `the answer is 1024` only by `flexible`.

    The rules are verl's (verl/utils/reward_score/gsm8k.py), but values are compared as numbers, and digits of a larger
    expression (`3/4`, `1,2,3`, `10:30`) are no number; verl compares the strings without commas.
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


def reference_number(text: str) -> Decimal | None:
    """The number of a reference answer: a solution that ends with `#### number`, or only a number.

    None for an answer that is not just a number, such as `3/4`, `20 m^2`, `10^6` or `1,5`.
    """
    return parse_single_number(text.rsplit("####", 1)[-1])


def check_number_references(answers: Mapping[str, str], examples: Sequence[Example]) -> list[str]:
    """Warnings about reference answers that are not numbers; raises `ConfigError` if none of an agent's is."""

    def find_unreadable(texts: list[str]) -> list[bool]:
        return [reference_number(text) is None for text in texts]

    return check_references(answers, examples, find_unreadable, rule="a number", remedy=REMEDY)


def _score_numbers(wanted: Sequence[Decimal | None], numbers: Iterable[Decimal | None]) -> list[float]:
    """1 for equal numbers, else 0; NaN (no score) if the reference has no number."""
    return [
        math.nan if right is None else float(right == number) for right, number in zip(wanted, numbers, strict=True)
    ]


def build_gsm8k_reward(config: Gsm8kRewardConfig, agents: Agents) -> ResponseRewardAdapter:
    """Build the reward of the configuration."""
    return adapt_response_reward(Gsm8kReward(reference_answers(agents), config.match), agents)
