"""Evaluation on the held-out rows, sampled and greedy, with fixed seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ippo_cli.config.errors import ConfigError, RewardError
from ippo_cli.config.reward_weights import reward_weights
from ippo_cli.config.schema import Config
from ippo_cli.engine import distributed
from ippo_cli.formulas.estimates import pass_at_k
from ippo_cli.reporting.iteration_metrics import add_prefix, count_turns, ratio
from ippo_cli.reporting.per_turn_metrics import logged_turn_counts, sum_turn
from ippo_cli.reporting.samples import SampleDetails, sample_rows
from ippo_cli.reporting.tool_metrics import tool_metrics
from ippo_cli.rewards.contract import Reward, RewardFunction
from ippo_cli.rewards.score import (
    call_reward,
    check_unused_weights,
    combine_rewards,
    failed_rows,
    first_failure_message,
    reward_name,
    turn_counts,
)
from ippo_cli.tasks.eval_rows import generations_by_mode, select_eval_rows
from ippo_cli.tasks.schedule import rank_range
from ippo_cli.tasks.task import Task, agents_with_tools, max_turns_by_agent, multi_turn_agents
from ippo_cli.types import Batch, Episode, Example

PlayFn = Callable[[Batch, bool], list[Episode]]
"""Plays one episode per example of a batch; the flag selects greedy decoding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Metrics named `<mode>/...`, and this rank's first episodes as sample table rows."""

    metrics: dict[str, float]
    samples: list[dict[str, Any]]
    episode_values: dict[
        str, torch.Tensor
    ]  # float64 [local episodes] of metrics that are means; NaN: excluded from the mean
    generations: dict[str, int]  # by mode: episodes per held-out row; episodes of one row are consecutive
    failed_counts: dict[str, int]  # by mode: episodes without a usable reward, over all ranks


def evaluate(
    play: PlayFn, task: Task, reward: RewardFunction, config: Config, *, keep_all_samples: bool = False
) -> Evaluation:
    """Score the held-out set. Metrics are the same on every rank and for every number of ranks.

    Each metric is a mean over rows; each row has equal weight, independent of its number of valid episodes.
    `samples` has `tracker.samples` of this rank's episodes, or all with `keep_all_samples`.
    Raises `RewardError` if too many rewards failed, `ConfigError` if `task.primary_metric` is not a metric.
    """
    rows = select_eval_rows(len(task.held_out), config.evaluation)
    modes = generations_by_mode(config.evaluation)
    agents = list(config.task.agents)
    several_turns = multi_turn_agents(config.task)
    metrics: dict[str, float] = {}
    samples: list[dict[str, Any]] = []
    rows_of: dict[str, torch.Tensor] = {}
    failed_of: dict[str, int] = {}
    for mode, num_generations in modes.items():
        total = len(rows) * num_generations
        episodes = play(evaluation_batch(task.held_out, rows, num_generations), mode == "greedy")
        rewards, failure = call_reward(reward, episodes, agents, config.reward)
        weights = reward_weights(config)
        check_unused_weights(rewards, weights, config.reward)
        turn_scores = combine_rewards(rewards, episodes, weights, agents)
        failures = {name: failed_rows(rewards, values) for name, values in turn_scores.items()}
        failed = torch.stack(list(failures.values())).any(dim=0)
        # An agent without turns has no score: NaN excludes it from all means.
        scores = {
            name: values.sum(dim=1).where(turn_counts(episodes, name) > 0, math.nan)
            for name, values in turn_scores.items()
        }
        by_row = values_by_episode(rewards, scores, failed, episodes)
        found = row_means(by_row, num_generations) | pass_at_k_metrics(by_row, num_generations)
        found["failed_fraction"] = float(distributed.all_sum(failed.sum().double())) / total
        found |= _multi_turn_metrics(episodes, several_turns, total)
        found |= tool_metrics(agents_with_tools(config.task), episodes)
        turns = logged_turn_counts(agents, episodes, max_turns_by_agent(config.task), config.tracker.turns)
        for name, count in turns.items():
            found |= add_prefix(name, evaluation_turn_means(episodes, name, turn_scores[name], ~failures[name], count))
        if found["failed_fraction"] > config.reward.failure_budget:
            raise RewardError(
                f"evaluation: {found['failed_fraction']:.0%} of the rows got no reward from "
                f"{reward_name(config.reward)} (reward.failure_budget={config.reward.failure_budget:g}); "
                f"{first_failure_message(failure)}"
            ) from failure
        failed_of[mode] = round(found["failed_fraction"] * total)
        metrics |= {f"{mode}/{name}": value for name, value in found.items()}
        rows_of |= {f"{mode}/{name}": values for name, values in by_row.items()}
        shown = {name: values.where(~failures[name][:, None], math.nan) for name, values in turn_scores.items()}
        shown_count = len(episodes) if keep_all_samples else config.tracker.samples
        details = SampleDetails(
            parts=rewards.parts, groups=[episode.index % len(task.held_out) for episode in episodes]
        )
        samples += sample_rows(mode, episodes, shown, shown_count, details)
    if config.task.primary_metric not in metrics:
        raise ConfigError(
            f"task.primary_metric={config.task.primary_metric}",
            "is not an evaluation metric of this task and reward",
            "use one of " + " ".join(metrics),
        )
    return Evaluation(
        metrics=metrics, samples=samples, episode_values=rows_of, generations=modes, failed_counts=failed_of
    )


def evaluation_batch(held_out: Sequence[Example], rows: Sequence[int], num_generations: int) -> Batch:
    """The examples of this rank's episodes; episodes of one row are consecutive.

    The first sample of a row has the same index, so the same random numbers, for every `num_generations`.
    """
    places = rank_range(len(rows) * num_generations, distributed.rank(), distributed.world_size())
    index = [rows[place // num_generations] + place % num_generations * len(held_out) for place in places]
    return Batch(
        examples=[held_out[rows[place // num_generations]] for place in places],
        index=torch.tensor(index, dtype=torch.long),
    )


def values_by_episode(
    rewards: Reward, scores: Mapping[str, torch.Tensor], failed: torch.Tensor, episodes: Sequence[Episode]
) -> dict[str, torch.Tensor]:
    """Per-episode values of the metrics that are means over rows, float64 `[local episodes]`; NaN: excluded."""
    means = {f"{name}/score": score for name, score in scores.items()}
    means["score"] = torch.stack(list(scores.values())).nanmean(dim=0)
    means |= {name: torch.tensor(numbers, dtype=torch.float32) for name, numbers in rewards.parts.items()}
    found = {  # a reward part may apply to some episodes only
        name: means[name].double().where(~failed & torch.isfinite(means[name]), math.nan) for name in sorted(means)
    }
    for name in scores:
        tokens = [sum(len(turn.completion.ids) for turn in episode.turns_of_agent(name)) for episode in episodes]
        cut = [float(not episode.finished(name)) if episode.turns_of_agent(name) else math.nan for episode in episodes]
        found[f"{name}/response_length"] = torch.tensor(tokens, dtype=torch.float64)
        found[f"{name}/truncated_fraction"] = torch.tensor(cut, dtype=torch.float64)
    return found


def row_means(by_row: Mapping[str, torch.Tensor], num_generations: int) -> dict[str, float]:
    """Each metric's mean over held-out rows of the mean over each row's `num_generations` episodes.

    NaN episodes, and rows with only NaN episodes, are excluded. Collective.
    """
    gathered = distributed.all_gather_rows(torch.stack(list(by_row.values()), dim=1))
    means = gathered.view(-1, num_generations, len(by_row)).nanmean(dim=1).nanmean(dim=0)
    return dict(zip(by_row, means.tolist(), strict=True))


def pass_at_k_metrics(by_row: Mapping[str, torch.Tensor], num_generations: int) -> dict[str, float]:
    """pass@k of the score and of reward parts that are 0 or 1 in every episode; empty if `num_generations` is 1.

    k: powers of 2 and `num_generations`. Rows with fewer than k valid episodes are excluded. Collective.
    """
    names = sorted(name for name in by_row if "/" not in name) if num_generations > 1 else []
    is_not_binary = torch.tensor([0.0] * len(names) + [0.0], dtype=torch.float64)
    for place, name in enumerate(names):
        valid = by_row[name][torch.isfinite(by_row[name])]
        is_not_binary[place] = float(((valid != 0) & (valid != 1)).any())
    binary_names = [
        name
        for name, not_binary in zip(names, distributed.all_max(is_not_binary).tolist(), strict=False)
        if not not_binary
    ]
    found: dict[str, float] = {}
    for name in binary_names:
        for key, passed in pass_at_k_by_row(
            name, distributed.all_gather_rows(by_row[name]).view(-1, num_generations)
        ).items():
            found[key] = float(passed.nanmean())
    return found


def pass_at_k_by_row(name: str, values: torch.Tensor) -> dict[str, torch.Tensor]:
    """Each row's pass@k, `[rows]`, from values `[rows, n]` that are 0, 1, or NaN for a failed episode."""
    correct, count, n = values.nansum(dim=1), torch.isfinite(values).sum(dim=1), values.shape[1]
    ks = sorted({*(2**power for power in range(1, n.bit_length()) if 2**power <= n), n} - {1})
    return {f"{name}/pass@{k}": pass_at_k(correct, count, k) for k in ks}


def evaluation_turn_means(
    episodes: Sequence[Episode], agent: str, scores: torch.Tensor, valid: torch.Tensor, turns: int
) -> dict[str, float]:
    """Means for each of an agent's first `turns` turns, over all ranks. Collective."""
    sums = {
        f"{name}/turn/{turn + 1}": both
        for turn in range(turns)
        for name, both in sum_turn(episodes, agent, turn, scores, valid).items()
    }
    total = distributed.all_sum(torch.tensor(list(sums.values()), dtype=torch.float64)).tolist()
    return {name: ratio(*both) for name, both in zip(sums, total, strict=True)}


def _multi_turn_metrics(episodes: Sequence[Episode], agents: Sequence[str], rows: int) -> dict[str, float]:
    """Turn counts and truncation of the agents that may have several turns, over all ranks. Collective."""
    found: dict[str, float] = {}
    for name in agents:
        counts = count_turns(episodes, name)
        turns, cut, overflow = distributed.all_sum(
            torch.tensor([counts["turns"], counts["cut"], counts["overflow"]], dtype=torch.float64)
        ).tolist()
        found[f"{name}/turns"] = turns / rows
        found[f"{name}/cut_fraction"] = cut / turns if turns else math.nan
        found[f"{name}/overflow_fraction"] = overflow / rows
    return found
