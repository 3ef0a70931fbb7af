"""An agent's metrics once more for each of its first turns: the same names, with `/turn/` and the turn's number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ippo_cli.agents.agent import Agent
from ippo_cli.engine import distributed
from ippo_cli.reporting.iteration_metrics import explained_variance, prefixed, ratio
from ippo_cli.types import Episode, Experience, Rollout, Scores, Targets


def shown_turns(
    agents: Iterable[str], episodes: Sequence[Episode], most: Mapping[str, int | None], shown: int
) -> dict[str, int]:
    """Of how many turns there are metrics, by agent, without those that have none: at most the first `shown`.

    `most`: how many turns each agent may have, None where no limit is known: then as many as it had on any rank.
    """
    several = [name for name in agents if most[name] != 1 and shown]
    return {
        name: min(shown, _most_spoken(episodes, name) if (limit := most[name]) is None else limit) for name in several
    }


def turn_row(
    agents: Mapping[str, Agent],
    experience: Experience,
    targets: Mapping[str, Targets],
    turns: Mapping[str, int],
) -> dict[str, float]:
    """Of agents that have several turns, as many of the first as `turns` says."""
    row: dict[str, float] = {}
    for name, count in turns.items():
        agent, rollout, scores, own = agents[name], experience.rollouts[name], experience.scores[name], targets[name]
        numbers = turn_sums(
            experience.episodes, name, rollout, scores, own, count, compares=agent.reference is not None
        )
        for turn in range(count):
            numbers |= {
                f"{key}/turn/{turn + 1}": value for key, value in turn_moments(agent, rollout, own, turn).items()
            }
        row |= prefixed(name, numbers)
    return row


def turn_sums(
    episodes: Sequence[Episode],
    agent: str,
    rollout: Rollout,
    scores: Scores,
    targets: Targets,
    turns: int,
    *,
    compares: bool,
) -> dict[str, float]:
    """Means over the turns with one number, over all ranks; `compares`: whether there is a reference."""
    mask, loss_mask = rollout.response_mask, targets.loss_mask  # rows without a score have no reward and no return
    per_token = {
        "rollout/logprob": (rollout.logprobs, mask),
        "targets/reward": (targets.rewards, loss_mask),
        "targets/return": (targets.returns, loss_mask),
    }
    if compares:
        per_token["kl/reference"] = (rollout.logprobs - targets.ref_logprobs, mask)
    sums: dict[str, tuple[float, float]] = {}  # by name: the sum, and of how many
    for turn in range(turns):
        tokens = rollout.turn == turn
        there = taken(episodes, agent, turn).to(scores.valid.device)
        sums |= {
            (f"{name}/turn/{turn + 1}" if name == "score" else f"rollout/{name}/turn/{turn + 1}"): both
            for name, both in totals_of_turn(episodes, agent, turn, scores.raw, scores.valid).items()
        }
        for name, (numbers, counted) in per_token.items():
            own = tokens & counted
            sums[f"{name}/turn/{turn + 1}"] = float(numbers.double()[own].sum()), float(own.sum())
        for how, credit in scores.credit.items():
            known = there & torch.isfinite(credit).all(dim=1)
            sums[f"credit/{how}/mean/turn/{turn + 1}"] = _column(credit, turn, known)
    total = distributed.all_sum(torch.tensor(list(sums.values()), dtype=torch.double, device=rollout.length.device))
    return {name: ratio(*both) for name, both in zip(sums, total.tolist(), strict=True)}


def totals_of_turn(
    episodes: Sequence[Episode], agent: str, turn: int, scores: Tensor, valid: Tensor
) -> dict[str, tuple[float, float]]:
    """Of one turn in the episodes of this rank: by name, a sum, and of how many it is.

    `scores` `[B, K]` by turn, of rows that are `valid`.
    """
    own = [said[turn] for episode in episodes if len(said := episode.own(agent)) > turn]
    scored = taken(episodes, agent, turn).to(valid.device) & valid
    return {
        "response_length": (float(sum(len(one.completion.ids) for one in own)), float(len(own))),
        "cut_share": (float(sum(not one.completion.finished for one in own)), float(len(own))),
        "score": _column(scores, turn, scored),
    }


def taken(episodes: Sequence[Episode], agent: str, turn: int) -> Tensor:
    """In which episodes an agent had this turn, `[B]` bool."""
    return torch.tensor([len(episode.own(agent)) > turn for episode in episodes], dtype=torch.bool)


def turn_moments(agent: Agent, rollout: Rollout, targets: Targets, turn: int) -> dict[str, float]:
    """Of one turn's action tokens that are trained on, over all ranks."""
    tokens = targets.loss_mask & (rollout.turn == turn)
    there = distributed.any_rank(bool(tokens.any()))
    advantage, variance = distributed.masked_moments(targets.advantages, tokens)
    found = {
        "targets/advantage": float(advantage) if there else torch.nan,
        "targets/advantage_spread": float(variance) ** 0.5 if there else torch.nan,
    }
    if agent.has_values:
        value, _ = distributed.masked_moments(targets.values, tokens)
        found["targets/value"] = float(value) if there else torch.nan
        own = replace(targets, value_mask=targets.value_mask & tokens)
        found["value/explained_variance"] = explained_variance(own, agent.policy.objective.config.gamma)
    return found


def _most_spoken(episodes: Sequence[Episode], agent: str) -> int:
    """The most turns of an agent in an episode of the buffer."""
    return int(distributed.all_max(torch.tensor(max((len(episode.own(agent)) for episode in episodes), default=0))))


def _column(numbers: Tensor, turn: int, rows: Tensor) -> tuple[float, float]:
    """The sum of one turn's numbers over rows, and how many these are."""
    paid = float(numbers[:, turn].double()[rows].sum()) if turn < numbers.shape[1] else 0.0
    return paid, float(rows.sum())
