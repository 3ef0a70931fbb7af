"""`reward=number`: partial credit for a response's last number by its distance to the reference answer's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal

from ippo_cli.config.schema import NumberRewardConfig
from ippo_cli.rewards.contract import Reward, mean_over_agents
from ippo_cli.rewards.episodes import Responses
from ippo_cli.rewards.gsm8k import check_number_references, reference_number
from ippo_cli.rewards.number_text import last_number, parse_number
from ippo_cli.rewards.references import reference_answers, render_reference
from ippo_cli.rewards.response_adapter import Agents, ResponseRewardAdapter, adapt_response_reward
from ippo_cli.types import Example


class NumberReward:
    """The weighted sum of three parts, each from 0 to 1; the team's reward is the mean over its agents.

    `right`: the response's last number equals the reference answer's. `near`: 1 minus its relative error, at least 0.
    `bare`: the response is only a number. With weights .5, .25 and .25 and reference answer 42, `42` scores 1, `So 42`
    .75, `40` about .49, `none` 0.

    This gives a learning signal to small models that are rarely correct. Agents without a reference answer receive the
    team's reward.
    """

    def __init__(self, answers: Mapping[str, str], weights: Mapping[str, float]) -> None:
        self.answers = answers
        self.weights = weights

    def validate_examples(self, examples: Sequence[Example]) -> list[str]:
        return check_number_references(self.answers, examples)

    def __call__(self, examples: Sequence[Example], responses: Responses) -> Reward:
        found: dict[str, dict[str, list[float]]] = {}
        for name in self.answers:
            wanted = [reference_number(render_reference(self.answers, name, example)) for example in examples]
            rows = [score_parts(text, number) for text, number in zip(responses[name], wanted, strict=True)]
            found[name] = {part: [row[part] for row in rows] for part in self.weights}
        own = {
            name: [sum(self.weights[part] * parts[part][row] for part in parts) for row in range(len(examples))]
            for name, parts in found.items()
        }
        team = mean_over_agents(own.values())
        own = {name: own.get(name, team) for name in responses}
        parts = {part: mean_over_agents([scores[part] for scores in found.values()]) for part in self.weights}
        return Reward(team=team, agent=own, parts=parts)


def score_parts(text: str, wanted: Decimal | None) -> dict[str, float]:
    """The score of each part; NaN (no score) if the reference has no number."""
    if wanted is None:
        return {"right": math.nan, "near": math.nan, "bare": math.nan}
    bare = float(parse_number(text.strip()) is not None)
    number = last_number(text)
    if number is None:
        return {"right": 0.0, "near": 0.0, "bare": bare}
    return {"right": float(number == wanted), "near": nearness(number, wanted), "bare": bare}


def nearness(number: Decimal, wanted: Decimal) -> float:
    """`max(0, 1 - |number - wanted| / max(|wanted|, 1))`."""
    return float(max(Decimal(0), 1 - abs(number - wanted) / max(abs(wanted), Decimal(1))))


def build_number_reward(config: NumberRewardConfig, agents: Agents) -> ResponseRewardAdapter:
    """Build the reward of the configuration."""
    weights = {"right": config.exact_weight, "near": config.near_weight, "bare": config.format_weight}
    return adapt_response_reward(NumberReward(reference_answers(agents), weights), agents)
