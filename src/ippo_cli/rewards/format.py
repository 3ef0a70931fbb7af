"""`reward=format`: whether responses match a regular expression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ippo_cli.config.schema import FormatRewardConfig
from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.patterns import MATCH_TIMEOUT_S, PatternMatcher
from ippo_cli.rewards.response_adapter import Agents, ResponseRewardAdapter, Responses, adapt_response_reward
from ippo_cli.rewards.rows import Row, stack_rows
from ippo_cli.types import Example


class FormatReward:
    """1 if the regular expression matches an agent's whole last response, without surrounding whitespace, else 0.

    `.` also matches line ends. The team's reward is the mean over its agents. A row fails if matching takes longer
    than `limit_s`.
    """

    def __init__(self, pattern: str, limit_s: float = MATCH_TIMEOUT_S) -> None:
        self._pattern = PatternMatcher(pattern, "reward.pattern", limit_s)

    def __call__(self, examples: Sequence[Example], responses: Responses) -> Reward:
        found = self._pattern.match([text.strip() for texts in responses.values() for text in texts])
        by_agent = {
            name: found[number * len(examples) : (number + 1) * len(examples)] for number, name in enumerate(responses)
        }
        rows = [_score_row({name: own[row] for name, own in by_agent.items()}) for row in range(len(examples))]
        return replace(stack_rows(rows), final=True)  # a retry would take as long

    def close(self) -> None:
        self._pattern.close()


def _score_row(matches: Mapping[str, bool | Exception]) -> Row | Exception:
    own: dict[str, float] = {}
    for name, match in matches.items():
        if isinstance(match, Exception):
            return match
        own[name] = float(match)
    return {"team": sum(own.values()) / len(own), "agent": own}


def build_format_reward(config: FormatRewardConfig, agents: Agents) -> ResponseRewardAdapter:
    """Build the reward of the configuration."""
    assert config.pattern is not None
    return adapt_response_reward(FormatReward(config.pattern), agents)
