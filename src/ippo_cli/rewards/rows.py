"""Builds a `Reward` from per-row results."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ippo_cli.rewards.contract import Reward

Row = Mapping[str, Any]
"""One row of a `Reward`, with the same keys: a number instead of a list, a list instead of a list of lists."""


def stack_rows(rows: Sequence[Row | Exception]) -> Reward:
    """Combine rows. Failed rows have no numbers and are listed in `failures`; missing numbers are NaN."""
    answers = [row if isinstance(row, Mapping) else {} for row in rows]

    def stack_by_name(key: str, missing: Any) -> dict[str, list[Any]]:
        names = list(dict.fromkeys(name for answer in answers for name in answer.get(key) or {}))
        return {name: [(answer.get(key) or {}).get(name, missing) for answer in answers] for name in names}

    def stack_list(key: str, missing: Any) -> list[Any] | None:
        return [answer.get(key, missing) for answer in answers] if any(key in answer for answer in answers) else None

    team = stack_list("team", math.nan)
    agent, by_step, by_turn = (
        stack_by_name("agent", math.nan),
        stack_list("team_by_step", None),
        stack_by_name("agent_by_turn", None),
    )
    is_empty = team is None and by_step is None and not agent and not by_turn
    return Reward(
        team=[math.nan] * len(rows) if is_empty else team,
        agent=agent,
        team_by_step=by_step,
        agent_by_turn=by_turn,
        parts=stack_by_name("parts", math.nan),
        valid=stack_list("valid", True),
        failures={place: row for place, row in enumerate(rows) if isinstance(row, Exception)},
    )


def mean_over_agents(numbers: Collection[Sequence[float]]) -> list[float]:
    """The mean over agents, row by row."""
    return [sum(row) / len(row) for row in zip(*numbers, strict=True)]
