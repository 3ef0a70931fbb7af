"""Baselines of single turns: mean returns of episodes with alternatives to one turn (C3, arXiv 2603.06859)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ippo_cli.config.schema import RewardConfig
from ippo_cli.formulas import alternative_baseline, score_to_go
from ippo_cli.rewards.baselines import TurnBaseline
from ippo_cli.rewards.contract import RewardFunction
from ippo_cli.rewards.score import Weights, compute_raw_scores, turn_counts
from ippo_cli.types import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class AlternativeEpisode:
    """An episode with an alternative to one turn of an agent."""

    row: int  # of the original episode
    turn: int  # of the agent
    number: int  # of the alternative among those to this turn, from 0
    episode: Episode
    is_usable: bool  # whether the replay reached the state before the turn


DIVERGED = RuntimeError(
    "a replay of the episode did not reach the turn: the environment must depend on its seed and on actions only"
)


def alternatives_baseline(
    reward: RewardFunction,
    episodes: Sequence[Episode],
    alternatives: Sequence[AlternativeEpisode],
    count: int,
    agent: str,
    weights: Weights,
    config: RewardConfig,
    *,
    gamma: float,
) -> TurnBaseline:
    """The mean return from each turn of `agent` over up to `count` alternatives to it. Collective.

    `b_k = mean over m of sum over j >= k of gamma^(j - k) s_j(z_k^m)`, where `z_k^m` is the episode with alternative m
    to turn k. Equal alternatives are scored once. Those without a score are excluded; `known` is False for rows with a
    turn without any scored alternative.
    """
    usable = [one for one in alternatives if one.is_usable]
    distinct: dict[tuple[object, ...], int] = {}
    scored: list[Episode] = []
    places: list[int] = []  # of each usable alternative among the scored episodes
    for one in usable:
        places.append(distinct.setdefault(_content(one, agent), len(scored)))
        if places[-1] == len(scored):
            scored.append(one.episode)
    found = compute_raw_scores(reward, scored, weights, [agent], config)
    to_go = score_to_go(found.numbers[agent].double(), gamma=gamma)
    num_turns = turn_counts(episodes, agent)
    width = max([1, *num_turns.tolist()])
    returns = torch.zeros(len(episodes), width, count, dtype=torch.float64)
    known = torch.zeros_like(returns, dtype=torch.bool)
    measured = torch.zeros(len(episodes), width, dtype=torch.bool)
    for one in alternatives:
        measured[one.row, one.turn] = True
    for one, place in zip(usable, places, strict=True):
        if not found.failed[agent][place]:
            returns[one.row, one.turn, one.number] = to_go[place, one.turn]
            known[one.row, one.turn, one.number] = True
    means, has_any = alternative_baseline(returns, known)
    return TurnBaseline(
        numbers=means,
        known=(has_any | ~measured).all(dim=1),
        failure=found.failure if len(usable) == len(alternatives) else found.failure or DIVERGED,
        measured=measured & has_any,
        gamma=gamma,
    )


def _content(one: AlternativeEpisode, agent: str) -> tuple[object, ...]:
    """Equal for alternatives with equal episodes: all later turns depend on the alternative only."""
    completion = one.episode.turns_of_agent(agent)[one.turn].completion
    return one.row, one.turn, completion.finished, completion.text, *completion.ids.tolist()
