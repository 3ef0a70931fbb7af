"""The reward contract: named numbers in, one score per agent out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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


class LengthError(ValueError):
    """Numbers for more or fewer rows than were asked about."""


RESERVED_PARTS = ("score", "failed_share")  # names of metrics that are there for every reward
RewardFunction = Callable[[Sequence[Example], Responses], Reward]


def checked(reward: Reward, agents: Sequence[str], rows: int) -> Reward:
    """The same reward as plain numbers, if it keeps the contract; `ValueError` says what does not.

    None counts as NaN: no number for this row.
    """
    if reward.team is None and not reward.agent:
        raise ValueError("a reward must give 'team' or 'agent' numbers, and gave neither")
    if reward.agent and set(reward.agent) != set(agents):
        raise ValueError(f"'agent' numbers must be given for {sorted(agents)}, not for {sorted(reward.agent)}")
    for name in reward.parts:
        if not re.fullmatch(r"[\w.-]+", name) or name in RESERVED_PARTS:
            raise ValueError(
                f"parts[{name}] is used in metric names: use letters, digits, '-', '_' and '.', and none "
                "of " + " ".join(RESERVED_PARTS)
            )
    return Reward(
        team=None if reward.team is None else _numbers("team", reward.team, rows),
        agent={name: _numbers(f"agent[{name}]", numbers, rows) for name, numbers in reward.agent.items()},
        parts={name: _numbers(f"parts[{name}]", numbers, rows) for name, numbers in reward.parts.items()},
        valid=None if reward.valid is None else [bool(x) for x in _numbers("valid", reward.valid, rows)],
    )


def _numbers(name: str, given: Sequence[Any], rows: int) -> list[float]:
    if isinstance(given, str) or not hasattr(given, "__len__") or len(given) != rows:
        length = len(given) if hasattr(given, "__len__") else repr(given)
        raise LengthError(f"'{name}' must have one entry for each of the {rows} rows, not {length}")
    numbers: list[float] = []
    for row, entry in enumerate(given):
        countable = hasattr(entry, "__float__") or hasattr(entry, "__index__")  # numpy's and torch's numbers too
        if entry is not None and (isinstance(entry, str | bytes) or not countable):
            raise ValueError(f"'{name}' has {entry!r:.60} at row {row}, where a number belongs")
        numbers.append(math.nan if entry is None else float(entry))
    return numbers
