"""`reward=exact_match`: how much of the reference answers the agents wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ippo_cli.config.schema import Match
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.response_adapter import Responses
from ippo_cli.tasks.templates import render_template
from ippo_cli.types import Example


class ExactMatchReward:
    """The team's reward is the share of correct characters over all agents' answers, or 1 only if all are exact.

    With `characters` an answer's positions are compared one by one; characters beyond the reference count as wrong
    ones (the share is of the longer of the two). An agent without a reference answer shares the team's reward.
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
    return correct / longest if longest else 1.0  # an empty answer was asked for, and given
