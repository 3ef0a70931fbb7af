"""The first episodes of a training iteration as rows of `samples/`, with the values of their tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ippo_cli.agents.agent import Agent
from ippo_cli.agents.team import Team
from ippo_cli.config.schema import Config
from ippo_cli.engine import distributed
from ippo_cli.engine.host_memory import release_free_memory
from ippo_cli.reporting.samples import SampleDetails, sample_rows
from ippo_cli.reporting.token_values import TurnTokens, token_columns, tokens_by_turn
from ippo_cli.types import Experience, Rollout, Scores, Targets, take_rows, trim_columns


def training_samples(
    team: Team, experience: Experience, targets: Mapping[str, Targets], config: Config
) -> list[dict[str, Any]]:
    """The first `tracker.samples` episodes of rank 0, with token values of the updated policies; empty on other ranks.

    Collective: every rank runs its own first episodes through the policies, in equally many forward batches. Draws no
    random numbers and changes no weights.
    """
    count, limit = config.tracker.samples, config.tracker.sample_tokens
    tokens = _collect_tokens(team, experience, targets, count, limit) if count and limit else {}
    if not distributed.is_main():
        return []
    raw = {name: scores.raw.where(scores.valid[:, None], torch.nan) for name, scores in experience.scores.items()}
    parts = {name: values.tolist() for scores in experience.scores.values() for name, values in scores.parts.items()}
    groups = (experience.batch.index // config.rollout.num_generations).tolist()
    details = SampleDetails(parts=parts, groups=groups, credit=_sum_credit(experience.scores), tokens=tokens)
    return sample_rows("train", experience.episodes, raw, count, details)


def buffer_distributions(experience: Experience, targets: Mapping[str, Targets]) -> dict[str, list[float]]:
    """Scores, response lengths and advantages of this rank's episodes, by `AGENT/distribution/NAME`."""
    values: dict[str, list[float]] = {}
    for name, scores in experience.scores.items():
        rollout = experience.rollouts[name]
        acted = rollout.response_mask.any(dim=1)
        values[f"{name}/distribution/score"] = scores.raw.sum(dim=1)[scores.valid].tolist()
        values[f"{name}/distribution/response_length"] = rollout.response_mask.sum(dim=1)[acted].tolist()
        if name in targets:
            values[f"{name}/distribution/advantage"] = targets[name].advantages[targets[name].loss_mask].tolist()
    return values


def _sum_credit(scores: Mapping[str, Scores]) -> dict[str, dict[str, list[float]]]:
    """The credit of each agent's rows by method, summed over measured turns; NaN if unknown."""

    def add_turns(credit: Tensor) -> list[float]:
        return credit.double().nansum(dim=1).where(credit.isfinite().any(dim=1), torch.nan).tolist()

    return {
        name: {method: add_turns(credit) for method, credit in own.credit.items()}
        for name, own in scores.items()
        if own.credit
    }


def _collect_tokens(
    team: Team, experience: Experience, targets: Mapping[str, Targets], count: int, limit: int
) -> dict[str, list[list[TurnTokens]]]:
    """Tokens of the first `count` episodes, by agent, episode and turn; empty on other ranks than 0. Collective."""
    episodes, policies = experience.episodes[:count], team.generation_policies
    tokens: dict[str, list[list[TurnTokens]]] = {}
    for name in team.names:
        turn_index, columns = None, None
        if name in team:
            rollout = _first_rows(experience.rollouts[name], count)
            width = rollout.turn.shape[1]
            columns = _evaluate_tokens(
                team[name], rollout, _first_targets(targets[name], count, width), experience.scores[name].valid[:count]
            )
            turn_index = rollout.turn.cpu()
        if distributed.is_main():
            tokens[name] = tokens_by_turn(episodes, name, policies[name].tokenizer, limit, turn_index, columns)
    release_free_memory()
    return tokens


def _evaluate_tokens(agent: Agent, rollout: Rollout, targets: Targets, valid: Tensor) -> dict[str, Tensor]:
    """The numbers of the rollout's action tokens, on the CPU. Collective."""
    logprobs, entropies = agent.evaluate_actions(rollout)
    columns = token_columns(
        rollout,
        targets,
        logprobs,
        entropies,
        valid,
        has_reference=agent.has_reference,
        has_values=agent.has_values,
    )
    return {name: column.cpu() for name, column in columns.items()}


def _first_rows(rollout: Rollout, count: int) -> Rollout:
    """The first rows of a rollout, with the columns that they use."""
    rows = range(min(count, len(rollout.texts)))
    first = Rollout(**take_rows(rollout, rows))
    return trim_columns(first, rollout.turn.shape[1], max(int(first.length.max()), 1))


def _first_targets(targets: Targets, count: int, width: int) -> Targets:
    """The first rows and columns of an agent's targets."""
    rows = range(min(count, len(targets.sample_counts)))
    return trim_columns(Targets(**take_rows(targets, rows)), targets.values.shape[1], width)
