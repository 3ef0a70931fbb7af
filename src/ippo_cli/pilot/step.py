"""One optimizer step of a policy on half of a sample: how far it moves the policy, and what it gains on the other half.

Afterwards the weights are those before it; the optimizer keeps the step in its moments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import islice
from statistics import fmean

import torch
from torch import Tensor, nn

from ippo_cli.agents.learner import Learner
from ippo_cli.config.critic_fitting import policy_warmup
from ippo_cli.config.schema import AlgorithmConfig
from ippo_cli.engine import distributed
from ippo_cli.formulas import kl_estimate
from ippo_cli.pilot.gradient import start_updates
from ippo_cli.pilot.sample import PilotSample
from ippo_cli.pilot.statistics import UNKNOWN, Estimate, jackknife
from ippo_cli.training.methods.method import Method
from ippo_cli.training.minibatches import OptimizerStep
from ippo_cli.training.trainer import Trainer
from ippo_cli.training.update import UpdateStats
from ippo_cli.types import StepContext

HALVES = 2  # the step is made on the prompts of one half, and judged on those of the other
MAX_RATES = 4  # measured learning rates, the configured one included
NEAR = 1.5  # ratio of a measured KL to `pilot.kl` that needs no further rate
SCALES = (1e-4, 1e4)  # limits of measured learning rates, in configured ones
EXPONENTS = (1.0, 3.0)  # limits of the exponent of KL in the learning rate: 2 for a small step in a fixed direction
LOWEST_KL = 1e-9  # nats per token; a smaller one is rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class StepChange:
    """The change of a policy by a step with `scale` times its learning rate."""

    scale: float
    kl: Estimate  # nats per token, from the policy before the step
    largest_logratio: float  # the 99th percentile of |log ratio| of tokens
    clip_fraction: float  # tokens outside the clip range; NaN without one
    gain: Estimate  # of the score per episode, to first order, on prompts that the step has not seen


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStep:
    """The first step of a policy at its peak learning rate."""

    learning_rate: float
    changes: Sequence[StepChange]  # at the configured rate, and nearer to `pilot.kl` if the step changes anything
    rate_at_limit: float  # the learning rate at which a step has the KL of `pilot.kl`, estimated; NaN if unknown
    stats: UpdateStats

    @property
    def configured(self) -> StepChange:
        """The change at the configured rate."""
        return self.changes[0]


class FirstStep(Method):
    """Ends an update after its first optimizer step."""

    def wrap_steps(
        self, learner: Learner, steps: Iterator[OptimizerStep], context: StepContext
    ) -> Iterator[OptimizerStep]:
        return islice(steps, 1)


@dataclass
class Displacement:
    """Trained weights before a step, and their change by it, on the CPU in float32."""

    learner: Learner
    start: list[Tensor] = field(default_factory=list)
    change: list[Tensor] = field(default_factory=list)

    def record_start(self) -> None:
        """Copy the weights before the step. Collective over the ranks that hold them, as are the other methods."""
        self._visit(lambda place, values: self.start.append(values.cpu().clone()))

    def record_change(self) -> None:
        """Copy the change by the step."""
        self._visit(lambda place, values: self.change.append(values.cpu() - self.start[place]))

    def write(self, scale: float) -> None:
        """Set the weights to those before the step and `scale` times its change."""
        for place, param in enumerate(self._parameters()):
            value = self.start[place] + scale * self.change[place] if scale else self.start[place]
            self.learner.engine.change_parameters([param], lambda values, value=value: [value.to(values[0])])

    def _visit(self, read: Callable[[int, Tensor], None]) -> None:
        for place, param in enumerate(self._parameters()):

            def keep(values: list[Tensor], place: int = place) -> list[Tensor]:
                read(place, values[0])
                return values

            self.learner.engine.change_parameters([param], keep)

    def _parameters(self) -> list[nn.Parameter]:
        return [param for param in self.learner.engine.module.parameters() if param.requires_grad]


def measure_step(trainer: Trainer, sample: PilotSample, learner: Learner) -> PolicyStep:
    """Take a policy's first step, measure its change at two learning rates, and undo it. Collective."""
    generations = trainer.config.rollout.num_generations
    context = StepContext(
        seed=trainer.config.seed,
        iteration=first_full_iteration(trainer, learner),
        num_iterations=trainer.plan.num_iterations,
    )
    before = _read_logprobs(trainer, sample, learner)
    moved = Displacement(learner)
    _on_holders(learner, moved.record_start)
    half = sample.select_part(0, HALVES, generations)
    updates = start_updates(trainer, half, context, [FirstStep()])
    updates.share_rows([learner], half.own_targets)
    updates.run(learner)
    stats = distributed.gather_objects(updates.stats[id(learner)])[learner.group.ranks[0]]
    _on_holders(learner, moved.record_change)
    used = stats.get(f"{learner.name}/{learner.stage}/learning_rate", math.nan)
    rate = learner.optimizer.learning_rate
    peak = rate / used if used > 0 else 1.0  # a step with a warm-up's rate is scaled to the peak rate

    def measure(scale: float) -> StepChange:
        _on_holders(learner, lambda: moved.write(peak * scale))
        return _measure_change(trainer, sample, learner, before, scale)

    changes, limit = [measure(1.0)], trainer.config.pilot.kl
    while len(changes) < MAX_RATES and _needs_another_rate(changes, limit):
        changes.append(measure(min(max(estimate_scale(changes, limit), SCALES[0]), SCALES[1])))
    _on_holders(learner, lambda: moved.write(0.0))
    return PolicyStep(
        learning_rate=rate, changes=changes, rate_at_limit=rate * estimate_scale(changes, limit), stats=stats
    )


def first_full_iteration(trainer: Trainer, learner: Learner) -> int:
    """The first iteration (counted from 0) that updates the policy at its peak learning rate."""
    return max(policy_warmup(trainer.config), learner.optimizer.warmup_iterations)


def _needs_another_rate(changes: Sequence[StepChange], limit: float) -> bool:
    """Whether a second rate is missing, or the last one has a KL that is far from the limit."""
    kl = changes[-1].kl.value
    return kl > LOWEST_KL and (len(changes) < 2 or not 1 / NEAR < kl / limit < NEAR)


def estimate_scale(changes: Sequence[StepChange], limit: float) -> float:
    """The multiple of the learning rate with this KL, by a power law through the last two rates; NaN if unknown.

    KL of a step in a fixed direction grows with the square of its length, and so of the learning rate: the directions
    of SGD and of Adam's first step do not depend on it.
    """
    known = [(change.scale, change.kl.value) for change in changes if change.kl.value > LOWEST_KL]
    if not known:
        return math.nan
    scale, kl = known[-1]
    exponent = 2.0
    if len(known) > 1 and (ratio := known[-2][0] / scale) != 1.0:
        exponent = min(max(math.log(known[-2][1] / kl) / math.log(ratio), EXPONENTS[0]), EXPONENTS[1])
    return scale * (limit / kl) ** (1.0 / exponent)


def _on_holders(learner: Learner, work: Callable[[], None]) -> None:
    if learner.group.is_member:
        with nullcontext() if learner.group.is_world else learner.group.activate():
            work()


def _read_logprobs(trainer: Trainer, sample: PilotSample, learner: Learner) -> dict[str, Tensor]:
    """Log-probabilities of the sampled tokens under a policy's current weights, by its agents. Collective."""
    trainer.preemption.raise_if_any_rank_requested()
    team, rollouts = trainer.state.team, sample.experience.rollouts
    return {name: team[name].recompute_logprobs(rollouts[name]).logprobs for name in learner.agent_names}


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


def _measure_change(
    trainer: Trainer, sample: PilotSample, learner: Learner, before: Mapping[str, Tensor], scale: float
) -> StepChange:
    after = _read_logprobs(trainer, sample, learner)
    rows, sizes = _change_rows(trainer, sample, learner, before, after)
    gathered = distributed.gather_objects((rows, sizes))
    found = sorted((row for part, _ in gathered for row in part), key=lambda row: row.index)
    magnitudes = torch.cat([part for _, part in gathered])
    tokens = sum(row.tokens for row in found)
    has_range = _clip_range(trainer.config.algorithm) is not None
    units = [group for group in _group_by_prompt(found) if sum(row.tokens for row in group)]
    return StepChange(
        scale=scale,
        kl=jackknife(units, _mean_kl),
        largest_logratio=_percentile(magnitudes, 0.99),
        clip_fraction=sum(row.clipped for row in found) / tokens if tokens and has_range else math.nan,
        gain=estimate_gain([row for row in found if row.is_unseen]),
    )


def _mean_kl(groups: Sequence[Sequence[RowChange]]) -> float:
    tokens = sum(row.tokens for group in groups for row in group)
    return sum(row.kl for group in groups for row in group) / tokens if tokens else math.nan


def estimate_gain(rows: Sequence[RowChange]) -> Estimate:
    """The change of the mean score by a step, to first order: the mean of `(score - baseline) * log ratio`.

    The log ratio is that of all tokens of an episode, whose mean product with the score is the derivative of the
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
