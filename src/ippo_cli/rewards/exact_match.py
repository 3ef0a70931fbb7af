"""`reward=exact_match`: fraction of characters that equal the reference answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ippo_cli.config.schema import ExactMatchConfig, Match
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.references import reference_answers
from ippo_cli.rewards.response_adapter import Agents, ResponseRewardAdapter, Responses, adapt_response_reward
from ippo_cli.tasks.templates import render_template
from ippo_cli.types import Example


class ExactMatchReward:
    """The team's reward is the fraction of correct characters over all agents' answers (`match=characters`), or 1 if
    all answers are exact and else 0 (`match=exact`).

    Characters are compared position by position; the denominator is the longer of answer and reference, so extra
    characters count as wrong. An agent without a reference answer receives the team's reward.
    """

    def __init__(self, answers: Mapping[str, str], match: Match) -> None:
        self.answers = answers
        self.match = match

    def __call__(self, examples: Sequence[Example], responses: Responses) -> Reward:
        correct = {name: [0] * len(examples) for name in responses}
        longest = {name: [0] * len(examples) for name in responses}
        exact = [1.0] * len(examples)
        for name, answer in self.answers.items():
            texts = responses[name]
            for row, (example, text) in enumerate(zip(examples, texts, strict=True)):
                reference = render_template(answer, example, f"task.agents.{name}.answer")
                correct[name][row] = sum(a == b for a, b in zip(reference, text, strict=False))
                longest[name][row] = max(len(reference), len(text))
                exact[row] *= text == reference
        share = [
            _accuracy(sum(correct[name][row] for name in responses), sum(longest[name][row] for name in responses))
            for row in range(len(examples))
        ]
        own = {
            name: list(map(_accuracy, correct[name], longest[name])) if name in self.answers else share
            for name in responses
        }
        return Reward(
            team=exact if self.match is Match.exact else share, agent=own, parts={"exact": exact, "characters": share}
        )


def _accuracy(correct: int, longest: int) -> float:
    return correct / longest if longest else 1.0  # both reference and answer are empty


def build_exact_match_reward(config: ExactMatchConfig, agents: Agents) -> ResponseRewardAdapter:
    """Build the reward of the configuration."""
    return adapt_response_reward(ExactMatchReward(reference_answers(config, agents), config.match), agents)
