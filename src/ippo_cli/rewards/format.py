"""`reward=format`: whether responses have a form."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ippo_cli.rewards.contract import Reward
from ippo_cli.rewards.responses import Responses
from ippo_cli.rewards.rows import mean_rows
from ippo_cli.types import Example


class FormatReward:
    """1 where a regular expression matches the whole of an agent's last response, spaces around it aside, else 0.

    `.` stands for line ends too. The team's reward is the mean over its agents.
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = re.compile(pattern, re.DOTALL)

    def __call__(self, examples: Sequence[Example], responses: Responses) -> Reward:
        own = {
            name: [float(self.pattern.fullmatch(text.strip()) is not None) for text in texts]
            for name, texts in responses.items()
        }
        return Reward(team=mean_rows(own.values()), agent=own)
