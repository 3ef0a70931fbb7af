"""A reward from what was said of each row by itself."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ippo_cli.rewards.contract import Reward

Row = Mapping[str, Any]
"""One row's part of a `Reward`, by the same names: a number where that has a list, a list where it has lists."""


def gathered(rows: Sequence[Row | Exception]) -> Reward:
    """The rows together. Those that failed have no numbers and stand in `failures`; what a row lacks is NaN."""
    answers = [row if isinstance(row, Mapping) else {} for row in rows]

    def named(key: str, missing: Any) -> dict[str, list[Any]]:
        names = list(dict.fromkeys(name for answer in answers for name in answer.get(key) or {}))
        return {name: [(answer.get(key) or {}).get(name, missing) for answer in answers] for name in names}

    def listed(key: str, missing: Any) -> list[Any] | None:
        return [answer.get(key, missing) for answer in answers] if any(key in answer for answer in answers) else None

    team = listed("team", math.nan)
    agent, by_step, by_turn = named("agent", math.nan), listed("team_by_step", None), named("agent_by_turn", None)
    nothing = team is None and by_step is None and not agent and not by_turn
    return Reward(
        team=[math.nan] * len(rows) if nothing else team,
        agent=agent,
        team_by_step=by_step,
        agent_by_turn=by_turn,
        parts=named("parts", math.nan),
        valid=listed("valid", True),
        failures={place: row for place, row in enumerate(rows) if isinstance(row, Exception)},
    )


def mean_rows(numbers: Collection[Sequence[float]]) -> list[float]:
    """The mean over agents, row by row."""
    return [sum(row) / len(row) for row in zip(*numbers, strict=True)]
