"""How a change of a policy's weights changes its log-probabilities, and to first order its expected score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import torch
from torch import Tensor

from ippo_cli.agents.learner import Learner
from ippo_cli.config.schema import AlgorithmConfig
from ippo_cli.engine import distributed
from ippo_cli.formulas import kl_estimate
from ippo_cli.pilot.sample import PilotSample
from ippo_cli.pilot.statistics import UNKNOWN, Estimate, jackknife
from ippo_cli.training.trainer import Trainer

HALVES = 2  # a step is made on the prompts of one half, and judged on those of the other


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """The change of a policy by a step with `scale` times its learning rate."""

    scale: float
    kl: Estimate  # nats per token, from the policy before the step
    largest_logratio: float  # the 99th percentile of |log ratio| of tokens
    clip_fraction: float  # tokens outside the clip range; NaN without one


@dataclass(frozen=True, slots=True, kw_only=True)
class RowChange:
    """One episode: how a step changed the log-probabilities of a policy's tokens."""

    prompt: int
    index: int
    kl: float  # sum over tokens
    tokens: int
    clipped: int
    logratio: float  # sum over tokens
    score: float  # mean over the policy's agents; NaN without one
    is_unseen: bool  # whether the step has not seen the prompt


def read_logprobs(trainer: Trainer, sample: PilotSample, learner: Learner) -> dict[str, Tensor]:
    """Log-probabilities of the sampled tokens under a policy's current weights, by its agents. Collective."""
    trainer.preemption.raise_if_any_rank_requested()
    team, rollouts = trainer.state.team, sample.experience.rollouts
    return {name: team[name].recompute_logprobs(rollouts[name]).logprobs for name in learner.agent_names}


def measure_change(
    trainer: Trainer,
    sample: PilotSample,
    learner: Learner,
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
    scale: float,
) -> StepChange:
    """The change between two sets of log-probabilities, by agent. Collective."""
    gathered = distributed.gather_objects(_change_rows(trainer, sample, learner, before, after))
    rows = _sort_rows([row for part, _ in gathered for row in part])
    tokens = sum(row.tokens for row in rows)
    has_range = _clip_range(trainer.config.algorithm) is not None
    return StepChange(
        scale=scale,
        kl=jackknife([group for group in _group_by_prompt(rows) if sum(row.tokens for row in group)], _mean_kl),
        largest_logratio=_percentile(torch.cat([part for _, part in gathered]), 0.99),
        clip_fraction=sum(row.clipped for row in rows) / tokens if tokens and has_range else math.nan,
    )


def measure_gain(
    trainer: Trainer, sample: PilotSample, learner: Learner, low: Mapping[str, Tensor], high: Mapping[str, Tensor]
) -> Estimate:
    """The gain of the expected score between two opposite changes, halved, on prompts that the step has not seen.

    `low` and `high`: log-probabilities after the step backwards and forwards. Their difference has no second-order
    term: KL lowers the mean log ratio of sampled tokens by either change. Collective.
    """
    own, _ = _change_rows(trainer, sample, learner, low, high)
    rows = _sort_rows([row for part in distributed.gather_objects(own) for row in part])
    return estimate_gain([row for row in rows if row.is_unseen]).transform(lambda value: value / 2)


def _sort_rows(rows: Sequence[RowChange]) -> list[RowChange]:
    return sorted(rows, key=lambda row: row.index)


def _mean_kl(groups: Sequence[Sequence[RowChange]]) -> float:
    tokens = sum(row.tokens for group in groups for row in group)
    return sum(row.kl for group in groups for row in group) / tokens if tokens else math.nan


def estimate_gain(rows: Sequence[RowChange]) -> Estimate:
    """The change of the mean score by a step, to first order: the mean of `(score - baseline) * log ratio`.

    The log ratio is that of all tokens of an episode, and its mean product with the score is the derivative of the
    expected score in the step's direction. The baseline is the mean score of the other episodes of the prompt; of all
    other prompts, for a prompt with one episode.
    """
    groups = _group_by_prompt([row for row in rows if math.isfinite(row.score)])
    if len(groups) < 2:
        return UNKNOWN
    total, count = sum(row.score for group in groups for row in group), sum(map(len, groups))
    products = []
    for group in groups:
        own = sum(row.score for row in group)
        products.append(
            fmean(
                (row.score - ((own - row.score) / (len(group) - 1) if len(group) > 1 else (total - own) / (count - 1)))
                * row.logratio
                for row in group
            )
        )
    return jackknife(products, fmean)


def _group_by_prompt(rows: Sequence[RowChange]) -> list[list[RowChange]]:
    groups: dict[int, list[RowChange]] = {}
    for row in rows:
        groups.setdefault(row.prompt, []).append(row)
    return list(groups.values())


def _change_rows(
    trainer: Trainer,
    sample: PilotSample,
    learner: Learner,
    before: Mapping[str, Tensor],
    after: Mapping[str, Tensor],
) -> tuple[list[RowChange], Tensor]:
    """This rank's episodes, and |log ratio| of all their tokens."""
    experience, schedule = sample.experience, trainer.collector.schedule
    limits = _clip_range(trainer.config.algorithm)
    sums = torch.zeros(4, len(experience.episodes), dtype=torch.float64)
    magnitudes = []
    for name in learner.agent_names:
        mask = experience.rollouts[name].response_mask
        logratio = (after[name] - before[name]).where(mask, 0.0).double()
        kl = kl_estimate(before[name], after[name], estimator="k3").double().where(mask, 0.0)
        outside = torch.zeros_like(mask)
        if limits is not None:
            outside = mask & ((logratio.exp() < 1 - limits[0]) | (logratio.exp() > 1 + limits[1]))
        sums += torch.stack([part.sum(dim=1).double().cpu() for part in (kl, mask, outside, logratio)])
        magnitudes.append(logratio[mask].abs().float().cpu())
    scores = _mean_scores(sample, learner.agent_names)
    unseen = sample.rows_outside(0, HALVES, trainer.config.rollout.num_generations).tolist()
    rows = [
        RowChange(
            prompt=schedule.row_at(episode.index // schedule.num_generations),
            index=episode.index,
            kl=kl,
            tokens=int(tokens),
            clipped=int(clipped),
            logratio=logratio,
            score=scores[row],
            is_unseen=unseen[row],
        )
        for row, (episode, (kl, tokens, clipped, logratio)) in enumerate(
            zip(experience.episodes, sums.T.tolist(), strict=True)
        )
    ]
    return rows, torch.cat(magnitudes)


def _mean_scores(sample: PilotSample, agents: Sequence[str]) -> list[float]:
    """Mean score of each of this rank's episodes over some agents; NaN without a valid one."""
    scores = [sample.experience.scores[name] for name in agents]
    values = torch.stack([own.raw.sum(dim=1).where(own.valid, math.nan) for own in scores])
    return values.nanmean(dim=0).tolist()


def _percentile(values: Tensor, level: float) -> float:
    """A percentile by rank: the smallest value that at least this fraction of values does not exceed."""
    if not len(values):
        return math.nan
    return float(values.sort().values[max(math.ceil(level * len(values)) - 1, 0)])


def _clip_range(config: AlgorithmConfig) -> tuple[float, float] | None:
    """Limits of the ratio below and above 1; None where the objective does not clip ratios."""
    low, high = config.clip_range_low, config.clip_range_high
    return None if low is None or high is None else (low, high)
