"""Metrics of agents' tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ippo_cli.engine import distributed
from ippo_cli.reporting.iteration_metrics import ratio
from ippo_cli.tasks.tools.environment import PARTS, part_of_agent
from ippo_cli.types import Episode


def tool_metrics(agents: Iterable[str], episodes: Sequence[Episode]) -> dict[str, float]:
    """Calls of each of `agents` over all ranks' episodes; excludes episodes in which a snapshot played. Collective."""
    row: dict[str, float] = {}
    for agent in agents:
        own = [episode for episode in episodes if agent not in episode.partners]
        turns = sum(len(episode.turns_of_agent(agent)) for episode in own)
        sums = [sum(episode.parts.get(part_of_agent(part, agent), 0.0) for episode in own) for part in PARTS]
        count, turns, calls, failed, calling = distributed.all_sum(
            torch.tensor([len(own), turns, *sums], dtype=torch.double)
        ).tolist()
        row |= {
            f"{agent}/tools/calls": ratio(calls, count),
            f"{agent}/tools/failed_calls": ratio(failed, count),
            f"{agent}/tools/valid_turn_fraction": ratio(calling, turns),
        }
    return row
