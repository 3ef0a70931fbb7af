"""Updating one learner: mini-batches over all ranks, micro-batches within one, one optimizer step each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor
from torch.profiler import record_function

from ippo_cli.agents.learner import Learner
from ippo_cli.config.errors import NonFiniteError
from ippo_cli.engine import distributed, progress
from ippo_cli.engine.host_memory import give_back_freed
from ippo_cli.engine.zero import StepResult
from ippo_cli.reporting.accumulator import Tally
from ippo_cli.reporting.iteration_metrics import prefixed
from ippo_cli.runs.faults import fault_point
from ippo_cli.training.minibatches import dealt
from ippo_cli.types import CriticView, Minibatch, Rollout, StepContext, Targets, joined, take

MAX_SKIPPED_IN_A_ROW = 5

UpdateStats = dict[str, float]


def update(
    learner: Learner,
    rollouts: Mapping[str, Rollout],
    targets: Mapping[str, Targets],
    context: StepContext,
    views: Mapping[str, CriticView] | None = None,
    *,
    turns: Mapping[str, int] = MappingProxyType({}),
    rests: bool = False,
) -> UpdateStats:
    """One iteration's training of one learner, on the rows of the agents that it learns from.

    `views`: by agent, what a centralised critic reads in place of the rows. `turns`: by agent, of how many of its first
    turns there are means; none of who is left out. One that `rests` is given its learning rate and nothing else.
    Returns its metrics by their full names, the same on every rank.
    """
    factor = learner.set_learning_rate(context.iteration, context.num_iterations)
    stats = {f"{learner.name}/{learner.stage}/learning_rate": factor * learner.optimizer.learning_rate}
    if not rests and learner.objective.trains(context):
        if learner.layout is not None:
            assert views is not None
            rollouts = {name: views[name].rollout for name in learner.trains}
            targets = {name: views[name].scattered(targets[name]) for name in learner.trains}
        rows = joined([rollouts[name] for name in learner.trains])
        own_targets = joined([targets[name] for name in learner.trains])
        with record_function(f"ippo/update/{learner.name} {learner.stage}"):
            stats |= _train(learner, rows, own_targets, context, turns)
    return stats


def _train(
    learner: Learner, rollout: Rollout, targets: Targets, context: StepContext, turns: Mapping[str, int]
) -> UpdateStats:
    learner.engine.train()
    tally, norms, steps, skipped = Tally.of(learner.name, learner.trains, turns), 0.0, 0, 0
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
            give_back_freed()
            steps, skipped = steps + 1, skipped + (not result.applied)
            tally.tokens += batch.num_tokens
            tally.first_epoch_tokens += batch.num_tokens if epoch == 0 else 0
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
    return prefixed(f"{learner.name}/{learner.stage}", own) | tally.means()


def _step(
    learner: Learner, batch: Minibatch, context: StepContext, tally: Tally, first: tuple[bool, bool]
) -> StepResult:
    """Gradients of all micro-batches, then the optimizer step. Ranks short of micro-batches run an ignored one."""
    groups = learner.batches(batch.rollout, learner.micro_batch_tokens)
    wanted = int(distributed.all_max(torch.tensor(len(groups), device=batch.rollout.response_ids.device)))
    for number in range(wanted):
        micro = batch.rows(groups[number] if number < len(groups) else groups[0][:1])
        if number >= len(groups):
            micro = micro.ignored()
        fault_point("forward")
        losses = learner.losses(micro, context)
        for prefix, loss in losses.items():
            tally.add(prefix, loss, micro, first_epoch=first[0], first_step=first[1])
        fault_point("backward")
        progress.made()
        learner.engine.backward(torch.stack([loss.total for loss in losses.values()]).sum())
    fault_point("step")
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
    agent = torch.arange(agents, device=device).repeat_interleave(len(by_agent))
    order = drawn[torch.randperm(total, generator=generator)].split(mini_batch_size)
    rows = [here[part][here[part] >= 0] for part in order]
    tokens = torch.stack([targets.loss_mask[part.to(device)].sum() for part in rows])
    sequences = torch.stack([targets.loss_mask[part.to(device)].any(dim=1).sum() for part in rows])
    values = torch.stack([targets.value_mask[part.to(device)].sum() for part in rows])
    counts = distributed.all_sum(torch.stack([tokens, sequences, values])).tolist()
    for number, part in enumerate(rows):
        if counts[0][number] == 0:
            continue  # nothing anywhere to learn from: no step, so that momentum alone moves nothing
        counts_of = [column[number] for column in counts]
        own = _at(rollout, targets, agent, part, counts_of)
        if distributed.world_size() > 1:
            own = dealt(own)
        yield own if len(own.agent) else _at(rollout, targets, agent, here.new_zeros(1), counts_of).ignored()


def _at(rollout: Rollout, targets: Targets, agent: Tensor, rows: Tensor, counts: Sequence[float]) -> Minibatch:
    """Some of the rows, with the counts of tokens, sequences and values of the whole mini-batch."""
    tokens, sequences, values = map(int, counts)
    return Minibatch(
        rollout=Rollout(**take(rollout, rows)),
        targets=Targets(**take(targets, rows)),
        num_tokens=tokens,
        num_sequences=sequences,
        num_values=values,
        agent=agent[rows.to(agent.device)],
    )


def _stop_if_not_finite(learner: Learner, result: StepResult) -> None:
    learner.skipped_in_a_row = 0 if result.applied else learner.skipped_in_a_row + 1
    if learner.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
        raise NonFiniteError(
            f"{learner.name}: {learner.skipped_in_a_row} optimizer steps in a row of its {learner.stage} had NaN or "
            f"infinite gradients and were not applied; lower the learning rates, or look for odd rewards in the samples"
        )
