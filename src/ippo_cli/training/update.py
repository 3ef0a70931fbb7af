"""Update of one learner: one optimizer step per mini-batch over all ranks, split into micro-batches on each rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor
from torch.profiler import record_function

from ippo_cli.agents.learner import Learner
from ippo_cli.config.errors import NonFiniteError
from ippo_cli.engine import distributed, progress
from ippo_cli.engine.host_memory import release_free_memory
from ippo_cli.engine.zero import StepResult
from ippo_cli.reporting.accumulator import MetricAccumulator
from ippo_cli.reporting.iteration_metrics import add_prefix
from ippo_cli.runs.faults import fault_point
from ippo_cli.training.minibatches import balance_across_ranks
from ippo_cli.types import CriticView, Minibatch, Rollout, StepContext, Targets, concatenate_rows, take_rows

MAX_SKIPPED_IN_A_ROW = 5

UpdateStats = dict[str, float]


def update_learner(
    learner: Learner,
    rollouts: Mapping[str, Rollout],
    targets: Mapping[str, Targets],
    context: StepContext,
    views: Mapping[str, CriticView] | None = None,
    *,
    turns: Mapping[str, int] = MappingProxyType({}),
    is_resting: bool = False,
) -> UpdateStats:
    """Train one learner for one iteration, on the rows of its agents; returns its metrics by full name.

    `views`: by agent, the input of a centralised critic in place of the rows. `turns`: by agent, the number of first
    turns with metrics. If `is_resting`, only the learning rate is set. Metrics are the same on every rank.
    """
    factor = learner.set_learning_rate(context.iteration, context.num_iterations)
    stats = {f"{learner.name}/{learner.stage}/learning_rate": factor * learner.optimizer.learning_rate}
    if not is_resting and learner.objective.is_active(context):
        if learner.layout is not None:
            assert views is not None
            rollouts = {name: views[name].rollout for name in learner.agent_names}
            targets = {name: views[name].scatter_targets(targets[name]) for name in learner.agent_names}
        rows = concatenate_rows([rollouts[name] for name in learner.agent_names])
        own_targets = concatenate_rows([targets[name] for name in learner.agent_names])
        with record_function(f"ippo/update/{learner.name} {learner.stage}"):
            stats |= _train_epochs(learner, rows, own_targets, context, turns)
    return stats


def _train_epochs(
    learner: Learner, rollout: Rollout, targets: Targets, context: StepContext, turns: Mapping[str, int]
) -> UpdateStats:
    learner.engine.train()
    accumulator, norms, steps, skipped = (
        MetricAccumulator.for_learner(learner.name, learner.agent_names, turns),
        0.0,
        0,
        0,
    )
    target_kl = learner.objective.target_kl
    for epoch in range(learner.ppo_epochs):
        stopped = False
        epoch_batches = iterate_minibatches(
            rollout,
            targets,
            context,
            mini_batch_size=learner.mini_batch_size,
            epoch=epoch,
            agents=len(learner.agent_names),
        )
        for number, batch in enumerate(epoch_batches):
            before = accumulator.step_sum("policy/approx_kl").clone()
            result = _optimizer_step(learner, batch, context, accumulator, (epoch == 0, epoch == 0 and number == 0))
            release_free_memory()
            steps, skipped = steps + 1, skipped + (not result.applied)
            accumulator.tokens += batch.num_tokens
            accumulator.first_epoch_tokens += batch.num_tokens if epoch == 0 else 0
            norms += result.grad_norm if result.applied else 0.0
            _check_finite_gradients(learner, result)
            if target_kl is not None:
                kl = distributed.all_sum(accumulator.step_sum("policy/approx_kl") - before)
                stopped = float(kl) / max(batch.num_tokens, 1) > target_kl
            if stopped:
                break
        if stopped:
            break
    learner.engine.eval()
    own = {"grad_norm": norms / max(steps - skipped, 1), "steps": float(steps), "skipped_steps": float(skipped)}
    if target_kl is not None:
        own["stopped_early"] = float(stopped)
    return add_prefix(f"{learner.name}/{learner.stage}", own) | accumulator.means()


def _optimizer_step(
    learner: Learner, batch: Minibatch, context: StepContext, accumulator: MetricAccumulator, first: tuple[bool, bool]
) -> StepResult:
    """Accumulate gradients over micro-batches, then step. Ranks with fewer micro-batches run masked ones."""
    groups = learner.split_batches(batch.rollout, learner.micro_batch_tokens)
    num_micro_batches = int(distributed.all_max(torch.tensor(len(groups), device=batch.rollout.response_ids.device)))
    for number in range(num_micro_batches):
        micro = batch.select_rows(groups[number] if number < len(groups) else groups[0][:1])
        if number >= len(groups):
            micro = micro.mask_all()
        fault_point("forward")
        losses = learner.losses(micro, context)
        for prefix, loss in losses.items():
            accumulator.add(prefix, loss, micro, first_epoch=first[0], first_step=first[1])
        fault_point("backward")
        progress.heartbeat()
        learner.engine.backward(torch.stack([loss.total for loss in losses.values()]).sum())
    fault_point("step")
    return learner.engine.step()


def iterate_minibatches(
    rollout: Rollout, targets: Targets, context: StepContext, *, mini_batch_size: int, epoch: int, agents: int = 1
) -> Iterator[Minibatch]:
    """The epoch's mini-batches, shuffled over the global buffer by (seed, iteration, epoch).

    Each rank has at least one row, and equally many rows of each of the concatenated `agents`; numbers of rows may
    differ between ranks. The global buffer is ordered by agent, then by rank. `balance_across_ranks` redistributes
    each mini-batch over ranks.
    """
    device = rollout.response_ids.device
    by_agent = targets.sample_counts.view(agents, -1).T  # [rows of an agent here, agents]
    counted = distributed.all_gather_rows(by_agent).T.flatten().cpu()
    total = len(counted)
    places = torch.arange(total).view(agents, -1)[:, distributed.local_row_slice(by_agent)].flatten()
    local_rows = torch.full((total,), -1).scatter(0, places, torch.arange(len(places)))  # this rank's row at each place
    generator = torch.Generator().manual_seed((context.seed * 1_000_003 + context.iteration) * 101 + epoch)
    # A row with sample count n appears n times.
    drawn = torch.repeat_interleave(torch.arange(total), counted)
    agent = torch.arange(agents, device=device).repeat_interleave(len(by_agent))
    order = drawn[torch.randperm(total, generator=generator)].split(mini_batch_size)
    rows = [local_rows[part][local_rows[part] >= 0] for part in order]
    tokens = torch.stack([targets.loss_mask[part.to(device)].sum() for part in rows])
    sequences = torch.stack([targets.loss_mask[part.to(device)].any(dim=1).sum() for part in rows])
    values = torch.stack([targets.value_mask[part.to(device)].sum() for part in rows])
    counts = distributed.all_sum(torch.stack([tokens, sequences, values])).tolist()
    for number, part in enumerate(rows):
        if counts[0][number] == 0:
            continue  # no trainable token on any rank: skip the step, as momentum would still change the weights
        counts_of = [column[number] for column in counts]
        own = _select_rows(rollout, targets, agent, part, counts_of)
        if distributed.world_size() > 1:
            own = balance_across_ranks(own)
        yield (
            own
            if len(own.agent)
            else _select_rows(rollout, targets, agent, local_rows.new_zeros(1), counts_of).mask_all()
        )


def _select_rows(rollout: Rollout, targets: Targets, agent: Tensor, rows: Tensor, counts: Sequence[float]) -> Minibatch:
    """Some of the rows, with the counts of tokens, sequences and values of the whole mini-batch."""
    tokens, sequences, values = map(int, counts)
    return Minibatch(
        rollout=Rollout(**take_rows(rollout, rows)),
        targets=Targets(**take_rows(targets, rows)),
        num_tokens=tokens,
        num_sequences=sequences,
        num_values=values,
        agent=agent[rows.to(agent.device)],
    )


def _check_finite_gradients(learner: Learner, result: StepResult) -> None:
    learner.consecutive_skips = 0 if result.applied else learner.consecutive_skips + 1
    if learner.consecutive_skips >= MAX_SKIPPED_IN_A_ROW:
        raise NonFiniteError(
            f"{learner.name}: {learner.consecutive_skips} consecutive optimizer steps of its {learner.stage} had NaN "
            "or infinite gradients and were skipped; lower the learning rates, or check the rewards in the samples"
        )
