"""`reward=format`: whether responses have a form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.patterns import MATCH_TIMEOUT_S, PatternMatcher
from ippo_cli.rewards.response_adapter import Responses
from ippo_cli.rewards.rows import Row, stack_rows
from ippo_cli.types import Example


class FormatReward:
    """1 where a regular expression matches the whole of an agent's last response, spaces around it aside, else 0.

    `.` stands for line ends too. The team's reward is the mean over its agents. A row in which matching takes longer
    than `limit_s` has failed.
    """

    def __init__(self, pattern: str, limit_s: float = MATCH_TIMEOUT_S) -> None:
        self._pattern = PatternMatcher(pattern, "reward.pattern", limit_s)

    def __call__(self, examples: Sequence[Example], responses: Responses) -> Reward:
        found = self._pattern.read([text.strip() for texts in responses.values() for text in texts])
        by_agent = {
            name: found[number * len(examples) : (number + 1) * len(examples)] for number, name in enumerate(responses)
        }
        rows = [_score_row({name: own[row] for name, own in by_agent.items()}) for row in range(len(examples))]
        return replace(stack_rows(rows), final=True)  # it would take as long again

    def close(self) -> None:
        self._pattern.close()


def _score_row(matches: Mapping[str, bool | Exception]) -> Row | Exception:
    own: dict[str, float] = {}
    for name, match in matches.items():
        if isinstance(match, Exception):
            return match
        own[name] = float(match)
    return {"team": sum(own.values()) / len(own), "agent": own}
