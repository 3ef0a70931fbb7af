"""Updating one learner: mini-batches over all ranks, micro-batches within one, one optimizer step each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.profiler import record_function

from ippo_cli.agents.learner import Learner
from ippo_cli.algorithms.losses import Loss
from ippo_cli.config.errors import NonFiniteError
from ippo_cli.engine import distributed
from ippo_cli.engine.zero import StepResult
from ippo_cli.training.balance import dealt
from ippo_cli.types import CriticView, Minibatch, Rollout, StepContext, Targets, joined, take

MAX_SKIPPED_IN_A_ROW = 5

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


def update(
    learner: Learner,
    rollouts: Mapping[str, Rollout],
    targets: Mapping[str, Targets],
    context: StepContext,
    views: Mapping[str, CriticView] | None = None,
    *,
    rests: bool = False,
) -> UpdateStats:
    """One iteration's training of one learner, on the rows of the agents that it learns from.

    `views`: by agent, what a centralised critic reads in place of the rows. One that `rests` is given its learning rate
    and nothing else. Returns its metrics, named `<stage>/<name>`, the same on every rank.
    """
    factor = learner.set_learning_rate(context.iteration, context.num_iterations)
    stats = {f"{learner.stage}/learning_rate": factor * learner.optimizer.learning_rate}
    if not rests and learner.objective.trains(context):
        if learner.layout is not None:
            assert views is not None
            rollouts = {name: views[name].rollout for name in learner.trains}
            targets = {name: views[name].scattered(targets[name]) for name in learner.trains}
        rows = joined([rollouts[name] for name in learner.trains])
        own_targets = joined([targets[name] for name in learner.trains])
        with record_function(f"ippo/update/{learner.name} {learner.stage}"):
            stats |= _train(learner, rows, own_targets, context)
    return stats


def _train(learner: Learner, rollout: Rollout, targets: Targets, context: StepContext) -> UpdateStats:
    learner.engine.train()
    tally, norms, steps, skipped, tokens, first_epoch_tokens = _Tally(), 0.0, 0, 0, 0, 0
    target_kl = learner.objective.target_kl
    for epoch in range(learner.ppo_epochs):
        stopped = False
        epoch_batches = minibatches(
            rollout,
            targets,
            context,
            mini_batch_size=learner.mini_batch_size,
            epoch=epoch,
            agents=len(learner.trains),
        )
        for number, batch in enumerate(epoch_batches):
            before = tally.step_sum("policy/approx_kl").clone()
            result = _step(learner, batch, context, tally, (epoch == 0, epoch == 0 and number == 0))
            steps, skipped, tokens = steps + 1, skipped + (not result.applied), tokens + batch.num_tokens
            first_epoch_tokens += batch.num_tokens if epoch == 0 else 0
            norms += result.grad_norm if result.applied else 0.0
            _stop_if_not_finite(learner, result)
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
    rollout: Rollout, targets: Targets, context: StepContext, *, mini_batch_size: int, epoch: int, agents: int = 1
) -> Iterator[Minibatch]:
    """The epoch's mini-batches. Their rows are a function of (seed, iteration, epoch) over the global buffer.

    Ranks may hold different numbers of rows, but each at least one, and of each of the `agents` whose rows are joined
    equally many. In the global buffer the rows of one agent on all ranks come before those of the next. Which rank
    works on a row of a mini-batch is decided for each anew (`balance.dealt`), whoever wrote it.
    """
    device = rollout.response_ids.device
    by_agent = targets.sample_counts.view(agents, -1).T  # [rows of an agent here, agents]
    counted = distributed.all_gather_rows(by_agent).T.flatten().cpu()
    total = len(counted)
    places = torch.arange(total).view(agents, -1)[:, distributed.own_rows(by_agent)].flatten()
    here = torch.full((total,), -1).scatter(0, places, torch.arange(len(places)))  # this rank's row at each place
    generator = torch.Generator().manual_seed((context.seed * 1_000_003 + context.iteration) * 101 + epoch)
    # A row that was drawn twice stands in two places, wherever its rank is; one that was not drawn in none.
    drawn = torch.repeat_interleave(torch.arange(total), counted)
    order = drawn[torch.randperm(total, generator=generator)].split(mini_batch_size)
    rows = [here[part][here[part] >= 0] for part in order]
    tokens = torch.stack([targets.loss_mask[part.to(device)].sum() for part in rows])
    sequences = torch.stack([targets.loss_mask[part.to(device)].any(dim=1).sum() for part in rows])
    values = torch.stack([targets.value_mask[part.to(device)].sum() for part in rows])
    counts = distributed.all_sum(torch.stack([tokens, sequences, values])).tolist()
    for number, part in enumerate(rows):
        if counts[0][number] == 0:
            continue  # nothing anywhere to learn from: no step, so that momentum alone moves nothing
        own = Rollout(**take(rollout, part)), Targets(**take(targets, part))
        if distributed.world_size() > 1:
            own = dealt(*own)
        idle = not len(own[0].texts)
        if idle:
            own = Rollout(**take(rollout, [0])), Targets(**take(targets, [0]))
        batch = Minibatch(
            rollout=own[0],
            targets=own[1],
            num_tokens=int(counts[0][number]),
            num_sequences=int(counts[1][number]),
            num_values=int(counts[2][number]),
        )
        yield batch.ignored() if idle else batch


def _stop_if_not_finite(learner: Learner, result: StepResult) -> None:
    learner.skipped_in_a_row = 0 if result.applied else learner.skipped_in_a_row + 1
    if learner.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
        raise NonFiniteError(
            f"{learner.name}: {learner.skipped_in_a_row} optimizer steps in a row of its {learner.stage} had NaN or "
            f"infinite gradients and were not applied; lower the learning rates, or look for odd rewards in the samples"
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
