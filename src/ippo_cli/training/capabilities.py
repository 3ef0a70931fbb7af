"""Capabilities of agents (HACPO): means of recent scores; their ratios weigh the scores of other agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ippo_cli.engine import distributed
from ippo_cli.types import Scores

MIN_CAPABILITY = 1e-8
RATIO_LIMITS = (0.1, 10.0)  # of the released code of HACPO


def capability_ratio(recent_scores: Mapping[str, Sequence[float]], agent: str, author: str) -> float:
    """The capability of an agent divided by that of another: the ratio of their mean recent scores, from 0.1 to 10.

    1 before any scores are known. Means of 0 or less count as a very small capability.
    """
    own, its = (recent_scores.get(name, ()) for name in (agent, author))
    if agent == author or not own or not its:
        return 1.0
    ability, other = (max(sum(numbers) / len(numbers), MIN_CAPABILITY) for numbers in (own, its))
    return min(max(ability / other, RATIO_LIMITS[0]), RATIO_LIMITS[1])


def add_scores(
    recent_scores: Mapping[str, Sequence[float]], scores: Mapping[str, Scores], window: int
) -> dict[str, list[float]]:
    """The mean scores of each agent in the last `window` iterations, with this one's; the same on all ranks.

    An iteration without any score of an agent is left out. Collective.
    """
    result: dict[str, list[float]] = {}
    for name, own in scores.items():
        mean, _ = distributed.masked_moments(own.raw.sum(dim=1), own.valid)
        new = [float(mean)] if distributed.any_rank(bool(own.valid.any())) else []
        result[name] = [*recent_scores.get(name, ()), *new][-window:]
    return result
