"""Held-out scores: every row, seeded, sampled as in training and greedy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ippo_cli.config.errors import ConfigError, RewardError
from ippo_cli.config.schema import Config
from ippo_cli.engine import distributed
from ippo_cli.rewards.contract import Reward, RewardFunction
from ippo_cli.rewards.score import attempt, failed_rows, mixed, turn_counts, why
from ippo_cli.tasks.prompts import PromptStream, share
from ippo_cli.tasks.task import Task
from ippo_cli.training.episodes import episodes_of
from ippo_cli.types import PromptBatch, Rollout

Ask = Callable[[Mapping[str, PromptBatch], bool], Mapping[str, Rollout]]
"""Prompts, and whether to decode greedily, to rollouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Metrics named `<mode>/...` and this rank's first rows as shown in sample tables."""

    metrics: dict[str, float]
    samples: list[dict[str, Any]]


def evaluate(ask: Ask, prompts: PromptStream, task: Task, reward: RewardFunction, config: Config) -> Evaluation:
    """Score the whole held-out set. Metrics are the same on every rank, and for every number of ranks."""
    rows = share(len(task.held_out), distributed.rank(), distributed.world_size())
    examples = [task.held_out[row] for row in rows]
    batch = prompts.tokenize_prompts(examples, torch.tensor(list(rows), dtype=torch.long))
    metrics: dict[str, float] = {}
    samples: list[dict[str, Any]] = []
    for mode in ("sampled", "greedy") if config.evaluation.greedy else ("sampled",):
        rollouts = ask(batch, mode == "greedy")
        episodes = episodes_of(batch, rollouts)
        given, failure = attempt(reward, episodes, list(rollouts), config.reward)
        with distributed.failing_together():
            numbers = {name: mixed(given, name, episodes, config.reward) for name in rollouts}
        failed = torch.stack([failed_rows(given, one) for one in numbers.values()]).any(dim=0)
        # An agent that never spoke has no score, and is in no mean.
        scores = {
            name: one.sum(dim=1).where(turn_counts(episodes, name) > 0, math.nan) for name, one in numbers.items()
        }
        found = _metrics(given, scores, failed, rollouts, len(task.held_out))
        if found["failed_share"] > config.reward.failure_budget:
            raise RewardError(
                f"evaluation: {found['failed_share']:.0%} of the rows have no reward; {why(failure)}"
            ) from failure
        metrics |= {f"{mode}/{name}": value for name, value in found.items()}
        samples += sample_rows(mode, batch, rollouts, scores, prompts, config.tracker.samples)
    if config.task.primary_metric not in metrics:
        raise ConfigError(
            f"task.primary_metric={config.task.primary_metric}",
            "is no evaluation metric of this task and reward",
            "use one of " + " ".join(metrics),
        )
    return Evaluation(metrics=metrics, samples=samples)


def sample_rows(
    mode: str,
    batch: Mapping[str, PromptBatch],
    rollouts: Mapping[str, Rollout],
    scores: Mapping[str, torch.Tensor],
    prompts: PromptStream,
    count: int,
) -> list[dict[str, Any]]:
    """The first rows as plain data: what each agent read and wrote, and its score."""
    examples = next(iter(batch.values())).examples
    return [
        {
            "mode": mode,
            "index": int(next(iter(batch.values())).index[row]),
            "agents": {
                name: {
                    "prompt": prompts.text(name, examples[row]),
                    "response": rollouts[name].texts[row],
                    "score": float(scores[name].reshape(len(examples), -1)[row].sum()),
                }
                for name in rollouts
            },
        }
        for row in range(min(count, len(examples)))
    ]


def _metrics(
    given: Reward,
    scores: Mapping[str, torch.Tensor],
    failed: torch.Tensor,
    rollouts: Mapping[str, Rollout],
    rows: int,
) -> dict[str, float]:
    valid = ~failed
    means = {f"{name}/score": score for name, score in scores.items()}
    means["score"] = torch.stack(list(scores.values())).nanmean(dim=0)
    means |= {name: torch.tensor(numbers, dtype=torch.float32) for name, numbers in given.parts.items()}
    names = sorted(means)
    kept = [valid & torch.isfinite(means[name]) for name in names]  # a part need not apply to every row
    sums = [means[name].double().where(rows_kept, 0.0).sum() for name, rows_kept in zip(names, kept, strict=True)]
    counts = [rows_kept.sum().double() for rows_kept in kept]
    lengths = [rollout.response_mask.sum().double().cpu() for rollout in rollouts.values()]
    truncated = [(~rollout.finished).sum().double().cpu() for rollout in rollouts.values()]
    total = distributed.all_sum(torch.stack([valid.sum().double(), *sums, *counts, *lengths, *truncated])).tolist()
    valid_rows, total = total[0], total[1:]
    result = {
        name: value / count if count else math.nan
        for name, value, count in zip(names, total[: len(names)], total[len(names) : 2 * len(names)], strict=True)
    }
    result["failed_share"] = 1.0 - valid_rows / rows
    of_agents = total[2 * len(names) :]
    for number, name in enumerate(rollouts):
        result[f"{name}/response_length"] = of_agents[number] / rows
        result[f"{name}/truncated_share"] = of_agents[len(rollouts) + number] / rows
    return result
