"""`reward=length`: whether the length of responses is within bounds."""

from __future__ import annotations

from collections.abc import Sequence

from ippo_cli.config.schema import LengthRewardConfig, LengthUnit
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.response_adapter import Agents
from ippo_cli.rewards.rows import mean_over_agents
from ippo_cli.types import Completion, Episode


class LengthReward:
    """1 for lengths from `low` to `high`, falling linearly to 0 over `margin` outside.

    The length is the sum over all turns of an agent. With low 10, high 20 and margin 4, length 22 scores 1/2, lengths
    24 and 6 score 0. The team's reward is the mean over its agents, the part `length` their mean length.
    """

    def __init__(self, agents: Sequence[str], unit: LengthUnit, low: int, high: int | None, margin: int) -> None:
        self.agents, self.unit, self.low, self.high, self.margin = list(agents), unit, low, high, margin

    def __call__(self, episodes: Sequence[Episode]) -> Reward:
        lengths = {
            name: [
                sum(_measure_length(turn.completion, self.unit) for turn in ep.turns_of_agent(name)) for ep in episodes
            ]
            for name in self.agents
        }
        own = {name: [self.score_length(length) for length in numbers] for name, numbers in lengths.items()}
        return Reward(
            team=mean_over_agents(own.values()), agent=own, parts={"length": mean_over_agents(lengths.values())}
        )

    def score_length(self, length: int) -> float:
        beyond = max(self.low - length, 0 if self.high is None else length - self.high, 0)
        return max(0.0, 1.0 - beyond / self.margin) if self.margin else float(beyond == 0)


def _measure_length(completion: Completion, unit: LengthUnit) -> int:
    match unit:
        case LengthUnit.tokens:
            return len(completion.ids)
        case LengthUnit.words:
            return len(completion.text.split())
        case LengthUnit.characters:
            return len(completion.text)


def build_length_reward(config: LengthRewardConfig, agents: Agents) -> LengthReward:
    """Build the reward of the configuration."""
    return LengthReward(list(agents), config.unit, config.low, config.high, config.margin)
