"""Per-turn metrics of an agent's first turns, named `<metric>/turn/<number>`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ippo_cli.agents.agent import Agent
from ippo_cli.engine import distributed
from ippo_cli.reporting.iteration_metrics import add_prefix, explained_variance, ratio
from ippo_cli.types import Episode, Experience, Rollout, Scores, Targets


def logged_turn_counts(
    agents: Iterable[str], episodes: Sequence[Episode], max_turns: Mapping[str, int | None], max_logged: int
) -> dict[str, int]:
    """The number of turns with metrics, by agent, at most `max_logged`; without single-turn agents.

    `max_turns`: each agent's maximum number of turns; None (no limit): the largest number on any rank. Collective.
    """
    several = [name for name in agents if max_turns[name] != 1 and max_logged]
    return {
        name: min(max_logged, _max_turns_taken(episodes, name) if (limit := max_turns[name]) is None else limit)
        for name in several
    }


def per_turn_metrics(
    agents: Mapping[str, Agent],
    experience: Experience,
    targets: Mapping[str, Targets],
    turns: Mapping[str, int],
) -> dict[str, float]:
    """Metrics of the first `turns[agent]` turns of each agent in `turns`. Collective."""
    row: dict[str, float] = {}
    for name, count in turns.items():
        agent, rollout, scores, own = agents[name], experience.rollouts[name], experience.scores[name], targets[name]
        numbers = per_turn_means(
            experience.episodes, name, rollout, scores, own, count, has_reference=agent.has_reference
        )
        for turn in range(count):
            numbers |= {
                f"{key}/turn/{turn + 1}": value
                for key, value in per_turn_target_metrics(agent, rollout, own, turn).items()
            }
        row |= add_prefix(name, numbers)
    return row


def per_turn_means(
    episodes: Sequence[Episode],
    agent: str,
    rollout: Rollout,
    scores: Scores,
    targets: Targets,
    turns: int,
    *,
    has_reference: bool,
) -> dict[str, float]:
    """Means of each of an agent's first `turns` turns, over all ranks. Collective."""
    mask, loss_mask = rollout.response_mask, targets.loss_mask  # rows without a score have no reward and no return
    per_token = {
        "rollout/logprob": (rollout.logprobs, mask),
        "targets/reward": (targets.rewards, loss_mask),
        "targets/return": (targets.returns, loss_mask),
    }
    if has_reference:
        per_token["kl/reference"] = (rollout.logprobs - targets.ref_logprobs, mask)
    sums: dict[str, tuple[float, float]] = {}  # by name: sum and count
    for turn in range(turns):
        tokens = rollout.turn == turn
        had_turn = turn_mask(episodes, agent, turn).to(scores.valid.device)
        sums |= {
            (f"{name}/turn/{turn + 1}" if name == "score" else f"rollout/{name}/turn/{turn + 1}"): both
            for name, both in sum_turn(episodes, agent, turn, scores.raw, scores.valid).items()
        }
        for name, (numbers, counted) in per_token.items():
            own = tokens & counted
            sums[f"{name}/turn/{turn + 1}"] = float(numbers.double()[own].sum()), float(own.sum())
        for how, credit in scores.credit.items():
            known = had_turn & torch.isfinite(credit[:, turn]) if turn < credit.shape[1] else had_turn & False
            sums[f"credit/{how}/mean/turn/{turn + 1}"] = _sum_column(credit, turn, known)
    total = distributed.all_sum(torch.tensor(list(sums.values()), dtype=torch.double, device=rollout.length.device))
    return {name: ratio(*both) for name, both in zip(sums, total.tolist(), strict=True)}


def sum_turn(
    episodes: Sequence[Episode], agent: str, turn: int, scores: Tensor, valid: Tensor
) -> dict[str, tuple[float, float]]:
    """Sum and count of each metric of one turn, over the episodes of this rank.

    `scores`: `[B, K]` by turn; only rows in `valid` count.
    """
    own = [turns[turn] for episode in episodes if len(turns := episode.trainable_turns(agent)) > turn]
    scored = turn_mask(episodes, agent, turn).to(valid.device) & valid
    return {
        "response_length": (float(sum(len(taken.completion.ids) for taken in own)), float(len(own))),
        "cut_fraction": (float(sum(not taken.completion.finished for taken in own)), float(len(own))),
        "score": _sum_column(scores, turn, scored),
    }


def turn_mask(episodes: Sequence[Episode], agent: str, turn: int) -> Tensor:
    """The episodes in which an agent had this turn, bool `[B]`."""
    return torch.tensor([len(episode.trainable_turns(agent)) > turn for episode in episodes], dtype=torch.bool)


def per_turn_target_metrics(agent: Agent, rollout: Rollout, targets: Targets, turn: int) -> dict[str, float]:
    """Target metrics of one turn's trained action tokens, over all ranks."""
    tokens = targets.loss_mask & (rollout.turn == turn)
    has_tokens = distributed.any_rank(bool(tokens.any()))
    advantage, variance = distributed.masked_moments(targets.advantages, tokens)
    found = {
        "targets/advantage": float(advantage) if has_tokens else torch.nan,
        "targets/advantage_std": float(variance) ** 0.5 if has_tokens else torch.nan,
    }
    if agent.has_values:
        value, _ = distributed.masked_moments(targets.values, tokens)
        found["targets/value"] = float(value) if has_tokens else torch.nan
        own = replace(targets, value_mask=targets.value_mask & tokens)
        found["value/explained_variance"] = explained_variance(own, agent.policy.objective.config.gamma)
    return found


def _max_turns_taken(episodes: Sequence[Episode], agent: str) -> int:
    """The largest number of turns of an agent in an episode, over all ranks."""
    return int(
        distributed.all_max(torch.tensor(max((len(episode.trainable_turns(agent)) for episode in episodes), default=0)))
    )


def _sum_column(numbers: Tensor, turn: int, rows: Tensor) -> tuple[float, float]:
    """Sum and count of one turn's numbers over the selected rows."""
    total = float(numbers[:, turn].double()[rows].sum()) if turn < numbers.shape[1] else 0.0
    return total, float(rows.sum())
