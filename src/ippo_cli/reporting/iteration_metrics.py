"""Computes the metrics of an iteration over all ranks; `metrics.py` describes each metric."""

from __future__ import annotations

import math
import resource
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ippo_cli.agents.agent import Agent
from ippo_cli.config.schema import CreditAssignment
from ippo_cli.engine import distributed
from ippo_cli.formulas import masked_mean, reward_to_go
from ippo_cli.types import CriticView, Episode, Experience, Rollout, Scores, Targets

ROUNDING_STEPS = 16.0  # returns that differ by fewer float32 epsilons count as equal
ZERO_CREDIT = 1e-6  # smaller credit counts as 0 (rounding)


def iteration_row(
    iteration: int,
    agents: Mapping[str, Agent],
    experience: Experience,
    targets: Mapping[str, Targets],
    kl_coefs: Mapping[str, float | None],
    stats: Iterable[Mapping[str, float]],
    turns: Mapping[str, int | None],
) -> dict[str, float]:
    """The metrics of an iteration without timings, the same on all ranks.

    `stats`: each learner's update metrics by full name. `turns`: each agent's maximum turns per episode, None without
    a limit.
    """
    row: dict[str, float] = {"iteration": iteration}
    for name, agent in agents.items():
        sampled, rollout, scores = experience.sampled[name], experience.rollouts[name], experience.scores[name]
        current_mask = current_policy_mask(experience.episodes, name).to(rollout.length.device)
        row |= add_prefix(name, rollout_metrics(rollout, scores, targets[name], kl_coefs[name], current_mask))
        if turns[name] != 1:
            row |= add_prefix(name, turn_metrics(experience.episodes, name, rollout))
        row |= add_prefix(name, target_metrics(rollout, targets[name], has_values=agent.has_values))
        if name in experience.greedy:
            row |= add_prefix(name, greedy_metrics(*experience.greedy[name]))
        if agent.has_values:
            gamma = agent.policy.objective.config.gamma
            row[f"{name}/value/explained_variance"] = explained_variance(targets[name], gamma)
        if agent.other_critics:
            row |= add_prefix(f"{name}/value", disagreement_metrics(targets[name]))
        if name in experience.views:
            row |= add_prefix(name, view_metrics(experience.views[name], current_mask))
        if rollout is not sampled:
            row |= add_prefix(name, sampler_prob_diff(sampled, rollout))
    for name in (name for name in experience.sampled if name not in agents):  # frozen
        rollout, scores = experience.rollouts[name], experience.scores[name]
        row |= add_prefix(name, rollout_metrics(rollout, scores, None, None))
        if turns[name] != 1:
            row |= add_prefix(name, turn_metrics(experience.episodes, name, rollout))
    for numbers in stats:
        row |= numbers
    return row


def timing_metrics(
    row: Mapping[str, float],
    agents: Sequence[str],
    buffer_size: int,
    seconds: Mapping[str, float],
    saving_seconds: float,
    ahead_seconds: float | None = None,
    generated_tokens: float | None = None,
) -> dict[str, float]:
    """Timings and rates of an iteration.

    `saving_seconds`: duration of the last save, 0 if none. `ahead_seconds`: duration of a collection that ran during
    the training of the iteration before. `generated_tokens`: of all drawn rows, if some were replaced; default: those
    of the buffer.
    """
    total = sum(seconds.values())
    saving = {"checkpoint": saving_seconds} if saving_seconds else {}
    ahead = {} if ahead_seconds is None else {"ahead": ahead_seconds}
    tokens = generated_tokens
    if tokens is None:
        tokens = sum(row[f"{name}/rollout/response_length"] for name in agents) * buffer_size
    return add_prefix("time", {**seconds, **ahead, "iteration": total, **saving}) | {
        "perf/tokens_per_second": tokens / (ahead_seconds or seconds["rollout"]),
        "perf/samples_per_second": buffer_size * len(agents) / total,
        "perf/peak_memory_mib": float(distributed.all_max(torch.tensor(peak_memory_mib()))),
    }


def current_policy_mask(episodes: Sequence[Episode], agent: str) -> Tensor:
    """Episodes `[B]` in which the agent used its current weights; all others are excluded from its means."""
    return torch.tensor([agent not in episode.partners for episode in episodes], dtype=torch.bool)


def rollout_metrics(
    rollout: Rollout, scores: Scores, targets: Targets | None, kl_coef: float | None, current_mask: Tensor | None = None
) -> dict[str, float]:
    """One agent's metrics of a buffer over all ranks. `kl_coef`: of the reward, if the agent has a reference.

    `targets`: None for a frozen agent. `current_mask` `[B]`: rows with the agent's current weights; default all.
    """
    mask = rollout.response_mask
    current_mask = torch.ones_like(rollout.finished) if current_mask is None else current_mask
    per_token = {"rollout/logprob": rollout.logprobs}
    trained = {}  # means over trained tokens only: rows without a score have no reward and no return
    if targets is not None:
        trained = {"targets/reward": targets.rewards, "targets/return": targets.returns}
    if rollout.behavior_logprobs is not rollout.logprobs:
        per_token["rollout/logprob_diff/filter"] = rollout.behavior_logprobs - rollout.logprobs
    if kl_coef is not None and targets is not None:
        per_token["kl/reference"] = rollout.logprobs - targets.ref_logprobs
    acted = mask.any(dim=1)
    per_row = {
        "rollout/response_length": mask.sum(dim=1).double(),
        "rollout/truncated_fraction": (acted & ~rollout.finished).double(),
        "score/failed_fraction": (scores.failed & current_mask).double(),
    }
    loss_mask = mask if targets is None else targets.loss_mask
    sums = [masked_mean(numbers.double(), mask) * mask.sum() for numbers in per_token.values()]
    sums += [masked_mean(numbers.double(), loss_mask) * loss_mask.sum() for numbers in trained.values()]
    sums += [numbers.sum() for numbers in per_row.values()]
    counts = [mask.sum().double(), loss_mask.sum().double(), acted.sum().double(), current_mask.sum().double()]
    tokens, loss_tokens, speaking, count, *found = distributed.all_sum(torch.stack([*counts, *sums])).tolist()
    divisors: dict[str, Any] = dict.fromkeys(per_token, tokens)
    divisors |= dict.fromkeys(trained, loss_tokens) | dict.fromkeys(per_row, count)
    result = {name: ratio(value, divisor) for (name, divisor), value in zip(divisors.items(), found, strict=True)}
    result["rollout/truncated_fraction"] = ratio(result["rollout/truncated_fraction"] * count, speaking)
    result |= _score_mean_std("score", scores.raw, scores.valid)
    if scores.score is not scores.raw:
        result |= _score_mean_std("score/processed", scores.score, scores.valid)
    for name, numbers in scores.parts.items():
        numbers = numbers.to(mask.device)
        has_part = scores.valid & torch.isfinite(numbers)
        part, _ = distributed.masked_moments(numbers, has_part)
        result[f"score/part/{name}"] = float(part) if distributed.any_rank(bool(has_part.any())) else math.nan
    for how, numbers in scores.credit.items():
        measured, occurred = numbers, acted
        if how == CreditAssignment.counterfactual.value:  # a credit for each turn
            turns = torch.arange(numbers.shape[1], device=mask.device) <= rollout.turn.amax(dim=1)[:, None]
            measured, occurred = numbers[turns][:, None], turns[turns]
        result |= add_prefix(f"credit/{how}", credit_metrics(measured, occurred))
    if kl_coef is not None:
        result["kl/reward_coef"] = kl_coef
    return result


def credit_metrics(credit: Tensor, acted: Tensor) -> dict[str, float]:
    """Metrics of an agent's `credit` `[B, K]`, summed over K and NaN if unknown, over all ranks."""
    total = credit.double().sum(dim=1)
    known = torch.isfinite(total) & acted
    counts = torch.stack([acted.sum(), known.sum(), (known & (total.abs() <= ZERO_CREDIT)).sum()]).double()
    speaking, known_count, zero = distributed.all_sum(counts).tolist()
    mean, variance = distributed.masked_moments(total, known)
    return {
        "mean": float(mean) if known_count else math.nan,
        "std": float(variance) ** 0.5 if known_count else math.nan,
        "zero_fraction": ratio(zero, known_count),
        "unknown_fraction": ratio(speaking - known_count, speaking),
    }


def turn_metrics(episodes: Sequence[Episode], agent: str, rollout: Rollout) -> dict[str, float]:
    """Turn metrics of an agent that may have several turns, over all ranks."""
    read = (rollout.length - rollout.response_mask.sum(dim=1)).sum().item()
    read += sum(len(turn.prompt) for row in rollout.detached for turn in row)
    counts = count_turns(episodes, agent)
    detached = float(sum(map(len, rollout.detached)))
    sums = [counts["episodes"], counts["turns"], float(read), counts["cut"], counts["overflow"], detached]
    total, spoken, tokens, cut, overflow, new_sequences = distributed.all_sum(
        torch.tensor(sums, dtype=torch.double, device=rollout.length.device)
    ).tolist()
    return {
        "rollout/turns": ratio(spoken, total),
        "rollout/observation_tokens": ratio(tokens, total),
        "rollout/cut_fraction": ratio(cut, spoken),
        "rollout/overflow_fraction": ratio(overflow, total),
        "rollout/new_sequences": ratio(new_sequences, total),
    }


def count_turns(episodes: Sequence[Episode], agent: str) -> dict[str, float]:
    """This rank's numbers of episodes, agent turns, truncated turns, and episodes that overflowed the agent's context.

    Excludes episodes in which a snapshot played for the agent.
    """
    episodes = [episode for episode in episodes if agent not in episode.partners]
    turns = [turn for episode in episodes for turn in episode.turns_of_agent(agent)]
    return {
        "episodes": float(len(episodes)),
        "turns": float(len(turns)),
        "cut": float(sum(not turn.completion.finished for turn in turns)),
        "overflow": float(sum(_is_context_overflow(episode, agent) for episode in episodes)),
    }


def _is_context_overflow(episode: Episode, agent: str) -> bool:
    """Whether an episode was truncated because an observation left no space for the agent's response."""
    return episode.truncation == "context" and agent in episode.last_observations and agent not in episode.final


def _score_mean_std(prefix: str, score: Tensor, valid: Tensor) -> dict[str, float]:
    mean, variance = distributed.masked_moments(score.sum(dim=1), valid)
    has_scores = distributed.any_rank(bool(valid.any()))
    return {
        f"{prefix}/mean": float(mean) if has_scores else math.nan,
        f"{prefix}/std": float(variance) ** 0.5 if has_scores else math.nan,
    }


def ratio(total: float, count: float) -> float:
    """A mean or fraction; NaN if `count` is 0."""
    return total / count if count else math.nan


def sampler_prob_diff(sampled: Rollout, rescored: Rollout) -> dict[str, float]:
    """Mean and maximum `|p_sampler - p_train|` of the sampled tokens, over all ranks."""
    mask = sampled.response_mask
    gap = (sampled.logprobs.double().exp() - rescored.logprobs.double().exp()).abs().where(mask, 0.0)
    log_gap = (sampled.logprobs.double() - rescored.logprobs.double()).abs().where(mask, 0.0)
    sums = torch.stack([gap.sum(), log_gap.sum(), mask.sum().double()])
    total, log_total, tokens = distributed.all_sum(sums).tolist()
    return {
        "rollout/logprob_diff/sampler": ratio(log_total, tokens),
        "rollout/prob_diff/sampler": ratio(total, tokens),
        "rollout/prob_diff/sampler_max": float(distributed.all_max(gap.max())),
    }


def disagreement_metrics(targets: Targets) -> dict[str, float]:
    """Metrics of the critics of an ensemble, over all ranks."""
    mask = targets.loss_mask
    sums = [targets.value_std * mask, mask & (targets.advantages == 0), mask & ~targets.entropy_mask, mask]
    *found, tokens = distributed.all_sum(torch.stack([part.double().sum() for part in sums])).tolist()
    names = ("disagreement", "masked_advantage_fraction", "masked_entropy_fraction")
    return {name: ratio(value, tokens) for name, value in zip(names, found, strict=True)}


def target_metrics(rollout: Rollout, targets: Targets, *, has_values: bool) -> dict[str, float]:
    """One agent's metrics of advantages, values and behaviour weights, over all ranks."""
    mask = targets.loss_mask
    sums = {
        "rows": mask.any(dim=1),
        "silent": mask.any(dim=1) & (targets.advantages == 0).all(dim=1),
        "all": torch.ones_like(targets.sample_counts),
        "drawn": targets.sample_counts > 0,
        "tokens": mask,
        "w": targets.behavior_weights * mask,
        "w2": targets.behavior_weights.square() * mask,
        "gap": (rollout.logprobs.exp() - rollout.behavior_logprobs.exp()).abs() * mask,
        "value": targets.values * mask,
    }
    total = distributed.all_sum(torch.stack([part.double().sum() for part in sums.values()])).tolist()
    totals = dict(zip(sums, total, strict=True))
    found = {
        "targets/advantage_std": float(distributed.masked_moments(targets.advantages, mask)[1]) ** 0.5
        if totals["tokens"]
        else math.nan,
        "targets/zero_advantage_fraction": ratio(totals["silent"], totals["rows"]),
        "targets/resampled_fraction": totals["drawn"] / totals["all"],
    }
    if has_values:
        found["targets/value"] = ratio(totals["value"], totals["tokens"])
    if rollout.behavior_logprobs is not rollout.logprobs:
        found["rollout/ess_ratio"] = ratio(totals["w"] ** 2 / max(totals["w2"], 1e-300), totals["tokens"])
        found["rollout/prob_diff/behavior"] = ratio(totals["gap"], totals["tokens"])
    return found


def explained_variance(targets: Targets, gamma: float | None) -> float:
    """`1 - Var(returns - values) / Var(returns)` over the regressed values of all ranks.

    NaN if the returns, or the rewards-to-go, are constant up to rounding: with lambda below 1, returns then vary only
    by the critic's own values.
    """
    mask = targets.value_mask
    _, residual = distributed.masked_moments(targets.returns - targets.values, mask)
    mean, total = distributed.masked_moments(targets.returns, mask)
    value_mean, value_variance = distributed.masked_moments(targets.values, mask)
    # Returns are sums of values and rewards, so their rounding error is that of the largest term.
    if _is_constant(total, mean.square() + total + value_mean.square() + value_variance):
        return math.nan
    earned = reward_to_go(targets.rewards, targets.loss_mask, gamma=1.0 if gamma is None else gamma)
    earned_mean, earned_variance = distributed.masked_moments(earned, mask)
    if _is_constant(earned_variance, earned_mean.square() + earned_variance):
        return math.nan
    return float(1.0 - residual / total)


def _is_constant(variance: Tensor, square: Tensor) -> bool:
    """Whether the variance is only float32 rounding of numbers with this mean square."""
    return float(variance.sqrt()) <= ROUNDING_STEPS * torch.finfo(torch.float32).eps * float(square.sqrt())


def view_metrics(view: CriticView, current_mask: Tensor) -> dict[str, float]:
    """Input tokens and truncation of a centralised critic, over episodes in `current_mask` `[B]` of all ranks."""
    read = ((view.rollout.prompt_mask.sum(dim=1) + view.rollout.length) * current_mask).sum()
    read += sum(len(turn.prompt) for row in view.rollout.detached for turn in row)
    sums = torch.stack([read, (view.is_truncated & current_mask).sum(), current_mask.sum()]).double()
    tokens, left_out, rows = distributed.all_sum(sums).tolist()
    return {"value/read_tokens": ratio(tokens, rows), "value/truncated_context_fraction": ratio(left_out, rows)}


def greedy_metrics(rollout: Rollout, scores: Scores) -> dict[str, float]:
    """Mean score of the greedy responses, which form the baseline."""
    return {"score/greedy": _score_mean_std("score", scores.raw, scores.valid)["score/mean"]}


def peak_memory_mib() -> float:
    """Peak memory of this rank: allocated on the CUDA device, else resident."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def add_prefix(prefix: str, numbers: Mapping[str, float]) -> dict[str, float]:
    """The same numbers under `<prefix>/`."""
    return {f"{prefix}/{name}": value for name, value in numbers.items()}
