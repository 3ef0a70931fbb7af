"""The reward contract: named numbers in, one score per agent out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ippo_cli.types import Example

Responses = Mapping[str, Sequence[str]]
"""Each agent's response texts, row by row for the same examples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """What a reward says about B rows. Numbers are named, never told apart by the length of a list.

    `team` is shared by all agents, `agent` is each agent's own; at least one of the two is given. `parts` are further
    numbers for the log. `valid` is False where no reward could be given; such rows are not trained on.
    A row that is not finite is not valid.
    """

    team: Sequence[float] | None = None  # [B]
    agent: Mapping[str, Sequence[float]] = field(default_factory=dict)  # agent -> [B]
    parts: Mapping[str, Sequence[float]] = field(default_factory=dict)  # name -> [B]
    valid: Sequence[bool] | None = None  # [B]; None: all


RewardFunction = Callable[[Sequence[Example], Responses], Reward]


def checked(reward: Reward, agents: Sequence[str], rows: int) -> Reward:
    """The same reward if it keeps the contract; `ValueError` says what does not."""
    if reward.team is None and not reward.agent:
        raise ValueError("a reward must give 'team' or 'agent' numbers, and gave neither")
    unknown = set(reward.agent) - set(agents)
    if unknown or (reward.agent and set(reward.agent) != set(agents)):
        raise ValueError(f"'agent' numbers must be given for {sorted(agents)}, not for {sorted(reward.agent)}")
    named = {"team": reward.team, "valid": reward.valid}
    named |= {f"agent[{name}]": numbers for name, numbers in reward.agent.items()}
    named |= {f"parts[{name}]": numbers for name, numbers in reward.parts.items()}
    for name, numbers in named.items():
        if numbers is not None and (isinstance(numbers, str) or len(numbers) != rows):
            raise ValueError(f"'{name}' must have one entry for each of the {rows} rows, not {len(numbers)}")
    return reward
