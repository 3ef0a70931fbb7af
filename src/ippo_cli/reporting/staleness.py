"""Metrics of how old the weights are that episodes were sampled with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch

from ippo_cli.engine import distributed
from ippo_cli.reporting.iteration_metrics import ratio
from ippo_cli.types import Episode


def staleness_metrics(
    agents: Iterable[str], episodes: Sequence[Episode], iterations: Mapping[str, Mapping[int, int]], iteration: int
) -> dict[str, float]:
    """Updates between the weights that sampled a token and those before this iteration's update: mean and largest.

    `iterations`: by agent and version of its weights, the number of updates before them. Collective.
    """
    metrics: dict[str, float] = {}
    for agent in agents:
        versions = [
            turn.completion.versions
            for episode in episodes
            for turn in episode.trainable_turns(agent)
            if turn.completion.versions is not None
        ]
        tokens = torch.cat(versions).tolist() if versions else []
        ages = torch.tensor([float(iteration - iterations[agent][version]) for version in tokens], dtype=torch.float64)
        total, count = distributed.all_sum(torch.tensor([float(ages.sum()), float(len(ages))])).tolist()
        metrics[f"{agent}/rollout/staleness"] = ratio(total, count)
        largest = distributed.all_max(torch.cat([ages, ages.new_zeros(1)]).max())
        metrics[f"{agent}/rollout/staleness_max"] = float(largest) if count else float("nan")
    return metrics
