"""Updating one agent: mini-batches over all ranks, micro-batches within one, one optimizer step each."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.profiler import record_function

from ippo_cli.agents.agent import Agent
from ippo_cli.agents.learner import Learner
from ippo_cli.algorithms.losses import Loss
from ippo_cli.config.errors import NonFiniteError
from ippo_cli.engine import distributed
from ippo_cli.engine.zero import StepResult
from ippo_cli.formulas import reward_to_go
from ippo_cli.types import Minibatch, Rollout, StepContext, Targets, take

MAX_SKIPPED_IN_A_ROW = 5
ROUNDING = 16.0  # steps of a float by which returns differ that are sums of the same

UpdateStats = dict[str, float]


@dataclass
class _Tally:
    """Sums and maxima over micro-batches, by name; one reduction over ranks at the end of an update."""

    sums: dict[str, Tensor] = field(default_factory=dict)
    maxima: dict[str, Tensor] = field(default_factory=dict)

    def add(self, prefix: str, loss: Loss, *, first_epoch: bool, first_step: bool) -> None:
        for name, value in loss.sums.items():
            if name != "ratio" or first_epoch:
                self._plus(f"{prefix}/{name}", value)
        for name, value in loss.maxima.items():
            for kept, wanted in (
                (f"{prefix}/{name}_max_deviation", first_epoch),
                (f"{prefix}/{name}_first_step_deviation", first_step),
            ):
                if wanted:
                    self.maxima[kept] = torch.maximum(self.maxima.get(kept, torch.zeros_like(value)), value)

    def _plus(self, name: str, value: Tensor) -> None:
        self.sums[name] = self.sums.get(name, torch.zeros((), dtype=torch.float64, device=value.device)) + value

    def step_sum(self, name: str) -> Tensor:
        return self.sums.get(name, torch.zeros((), dtype=torch.float64))


def update(agent: Agent, rollout: Rollout, targets: Targets, context: StepContext) -> UpdateStats:
    """One iteration's training of one agent. Returns its metrics, named `<stage>/<name>`, the same on every rank."""
    stats: UpdateStats = {}
    for learner in agent.learners:
        factor = learner.set_learning_rate(context.iteration, context.num_iterations)
        stats[f"{learner.stage}/learning_rate"] = factor * learner.optimizer.learning_rate
        if learner.objective.trains(context):
            with record_function(f"ippo/update/{agent.name} {learner.stage}"):
                stats |= _train(agent.name, learner, rollout, targets, context)
    if agent.has_values:
        stats["value/explained_variance"] = explained_variance(targets, agent.actor.objective.config.gamma)
    return stats


def explained_variance(targets: Targets, gamma: float | None) -> float:
    """`1 - Var(returns - values) / Var(returns)` over the regressed values of all ranks.

    NaN where there is nothing to explain: returns are constant but for rounding, or rewards alone would make them so,
    and they vary by the critic's own values (lambda below 1) or not at all.
    """
    mask = targets.value_mask
    _, residual = distributed.masked_moments(targets.returns - targets.values, mask)
    mean, total = distributed.masked_moments(targets.returns, mask)
    value_mean, value_variance = distributed.masked_moments(targets.values, mask)
    # Returns are sums of values and rewards: their rounding is that of the largest of these.
    if _constant(total, mean.square() + total + value_mean.square() + value_variance):
        return math.nan
    earned = reward_to_go(targets.rewards, targets.loss_mask, gamma=1.0 if gamma is None else gamma)
    earned_mean, earned_variance = distributed.masked_moments(earned, mask)
    if _constant(earned_variance, earned_mean.square() + earned_variance):
        return math.nan
    return float(1.0 - residual / total)


def _constant(variance: Tensor, square: Tensor) -> bool:
    """Whether float32 numbers vary by rounding alone that are made of others of this mean square."""
    return float(variance.sqrt()) <= ROUNDING * torch.finfo(torch.float32).eps * float(square.sqrt())


def _train(agent: str, learner: Learner, rollout: Rollout, targets: Targets, context: StepContext) -> UpdateStats:
    learner.engine.train()
    tally, norms, steps, skipped, tokens, first_epoch_tokens = _Tally(), 0.0, 0, 0, 0, 0
    target_kl = learner.objective.target_kl
    for epoch in range(learner.ppo_epochs):
        stopped = False
        epoch_batches = minibatches(rollout, targets, context, mini_batch_size=learner.mini_batch_size, epoch=epoch)
        for number, batch in enumerate(epoch_batches):
            before = tally.step_sum("policy/approx_kl").clone()
            result = _step(learner, batch, context, tally, (epoch == 0, epoch == 0 and number == 0))
            steps, skipped, tokens = steps + 1, skipped + (not result.applied), tokens + batch.num_tokens
            first_epoch_tokens += batch.num_tokens if epoch == 0 else 0
            norms += result.grad_norm if result.applied else 0.0
            _stop_if_not_finite(agent, learner, result)
            if target_kl is not None:
                kl = distributed.all_sum(tally.step_sum("policy/approx_kl") - before)
                stopped = float(kl) / max(batch.num_tokens, 1) > target_kl
            if stopped:
                break
        if stopped:
            break
    learner.engine.eval()
    own = {"grad_norm": norms / max(steps - skipped, 1), "steps": float(steps), "skipped_steps": float(skipped)}
    if target_kl is not None:
        own["stopped_early"] = float(stopped)
    stats = {f"{learner.stage}/{name}": value for name, value in own.items()}
    return stats | _reduced(tally, tokens, first_epoch_tokens)


def _step(
    learner: Learner, batch: Minibatch, context: StepContext, tally: _Tally, first: tuple[bool, bool]
) -> StepResult:
    """Gradients of all micro-batches, then the optimizer step. Ranks short of micro-batches run an ignored one."""
    groups = learner.batches(batch.rollout, learner.micro_batch_tokens)
    wanted = int(distributed.all_max(torch.tensor(len(groups), device=batch.rollout.response_ids.device)))
    for number in range(wanted):
        micro = batch.rows(groups[number] if number < len(groups) else groups[0][:1])
        if number >= len(groups):
            micro = micro.ignored()
        losses = learner.losses(micro, context)
        for prefix, loss in losses.items():
            tally.add(prefix, loss, first_epoch=first[0], first_step=first[1])
        learner.engine.backward(torch.stack([loss.total for loss in losses.values()]).sum())
    return learner.engine.step()


def minibatches(
    rollout: Rollout, targets: Targets, context: StepContext, *, mini_batch_size: int, epoch: int
) -> Iterator[Minibatch]:
    """The epoch's mini-batches. Their rows are a function of (seed, iteration, epoch) over the global buffer.

    Ranks may hold different numbers of rows, but each at least one.
    """
    device = rollout.response_ids.device
    counted = distributed.all_gather_rows(targets.sample_counts).cpu()
    mine, total = distributed.own_rows(targets.sample_counts), len(counted)
    generator = torch.Generator().manual_seed((context.seed * 1_000_003 + context.iteration) * 101 + epoch)
    # A row that was drawn twice stands in two places, wherever its rank is; one that was not drawn in none.
    drawn = torch.repeat_interleave(torch.arange(total), counted)
    order = drawn[torch.randperm(total, generator=generator)].split(mini_batch_size)
    rows = [part[(part >= mine.start) & (part < mine.stop)] - mine.start for part in order]
    tokens = torch.stack([targets.loss_mask[part.to(device)].sum() for part in rows])
    sequences = torch.stack([targets.loss_mask[part.to(device)].any(dim=1).sum() for part in rows])
    values = torch.stack([targets.value_mask[part.to(device)].sum() for part in rows])
    counts = distributed.all_sum(torch.stack([tokens, sequences, values])).tolist()
    for number, part in enumerate(rows):
        if counts[0][number] == 0:
            continue  # nothing anywhere to learn from: no step, so that momentum alone moves nothing
        picked = part if len(part) else torch.zeros(1, dtype=torch.long)
        batch = Minibatch(
            rollout=Rollout(**take(rollout, picked)),
            targets=Targets(**take(targets, picked)),
            num_tokens=int(counts[0][number]),
            num_sequences=int(counts[1][number]),
            num_values=int(counts[2][number]),
        )
        yield batch if len(part) else batch.ignored()


def _stop_if_not_finite(agent: str, learner: Learner, result: StepResult) -> None:
    learner.skipped_in_a_row = 0 if result.applied else learner.skipped_in_a_row + 1
    if learner.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
        raise NonFiniteError(
            f"{agent}: {learner.skipped_in_a_row} optimizer steps in a row of its {learner.stage} had NaN or infinite "
            f"gradients and were not applied; lower the learning rates, or look for odd rewards in the samples"
        )


def _reduced(tally: _Tally, tokens: int, first_epoch_tokens: int) -> UpdateStats:
    names = sorted(tally.sums)
    sums = distributed.all_sum(torch.stack([tally.sums[name] for name in names])).tolist() if names else []
    stats = {
        name: value / max(first_epoch_tokens if name.endswith("/ratio") else tokens, 1)
        for name, value in zip(names, sums, strict=True)
    }
    for name, value in sorted(tally.maxima.items()):
        stats[name] = float(distributed.all_max(value))
    return stats
