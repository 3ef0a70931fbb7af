"""Signal and noise of each agent's policy gradient, from gradients of parts of a sample."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ippo_cli.agents.learner import Learner
from ippo_cli.algorithms.objectives import PolicyObjective
from ippo_cli.engine import distributed, progress
from ippo_cli.pilot.sample import PilotSample
from ippo_cli.pilot.statistics import GradientSignal, measure_signal
from ippo_cli.planning.trained_memory import FEWEST_PILOT_PARTS, FP32_BYTES, PILOT_PARTS, count_pilot_parts
from ippo_cli.training.methods.method import Method
from ippo_cli.training.methods.role_gradients import own_share, scalar_product, split_roles
from ippo_cli.training.minibatches import concatenate_agents, iterate_minibatches
from ippo_cli.training.team_update import LearnerRows, PlacedUpdates
from ippo_cli.training.trainer import Trainer
from ippo_cli.types import Minibatch, StepContext


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyGradient:
    """The gradient of a policy's loss on the sample."""

    whole: GradientSignal
    by_agent: Mapping[str, GradientSignal]  # of the agents with these weights: of the losses on their own rows


def measure_gradient(trainer: Trainer, sample: PilotSample, learner: Learner, context: StepContext) -> PolicyGradient:
    """Measure a policy's gradient at its current weights, which stay as they are. Collective."""
    generations = trainer.config.rollout.num_generations
    prompts = len(sample.collected.buffer.prompts.positions)
    gradients_by_part: list[list[list[Tensor]]] = []  # by part and agent
    count = 0
    for part in range(parts := _count_parts(trainer, learner, prompts)):
        rows = share_learner_rows(trainer, sample.select_part(part, parts, generations), learner, context)
        trainer.preemption.raise_if_any_rank_requested()
        if learner.group.is_member:
            with nullcontext() if learner.group.is_world else learner.group.activate():
                batch = build_batch(learner, rows, context)
                # A comprehension would keep the previous whole gradient while the next one is computed.
                gradients_by_part.append([*map(_keep_share, _gradients_by_agent(learner, batch, context))])
                counts = [own.sample_counts.sum() for own in rows.targets.values()]
                count += int(distributed.all_sum_groups(torch.stack(counts).sum()))
    found = None
    if learner.group.is_member:
        with nullcontext() if learner.group.is_world else learner.group.activate():
            found = _measure_gradients(learner, gradients_by_part, count)
    if learner.group.is_world:
        assert found is not None
        return found
    return distributed.gather_objects(found)[learner.group.ranks[0]]


def measure_bonus(trainer: Trainer, sample: PilotSample, learner: Learner, context: StepContext) -> float:
    """The norm of the entropy bonus's gradient by that of the other terms of a policy's loss; 0 without a bonus.

    Infinite if the other terms have no gradient. Collective.
    """
    if not learner.objective.config.entropy_coef:
        return 0.0
    rows = share_learner_rows(trainer, sample, learner, context)
    found = None
    if learner.group.is_member:
        with nullcontext() if learner.group.is_world else learner.group.activate():
            found = _compare_bonus(learner, build_batch(learner, rows, context), context)
    return distributed.gather_objects(found)[learner.group.ranks[0]]


def _compare_bonus(learner: Learner, batch: Minibatch | None, context: StepContext) -> float:
    """Collective over the holders."""
    if batch is None:
        return 0.0
    objective = learner.objective
    assert isinstance(objective, PolicyObjective)
    without = copy(learner)
    without.objective = replace(objective, config=replace(objective.config, entropy_coef=0.0))
    whole = _keep_share(_policy_gradient(learner, batch, context))
    rest = _keep_share(_policy_gradient(without, batch, context))
    bonus = [one - other for one, other in zip(whole, rest, strict=True)]
    local = torch.stack([scalar_product(bonus, bonus), scalar_product(rest, rest)])
    squares = distributed.all_sum(local.to(next(learner.engine.module.parameters()).device)).tolist()
    return math.sqrt(squares[0] / squares[1]) if squares[1] > 0 else math.inf


def share_learner_rows(trainer: Trainer, sample: PilotSample, learner: Learner, context: StepContext) -> LearnerRows:
    """What a learner is trained on, on the ranks that hold it. Collective."""
    updates = start_updates(trainer, sample, context)
    updates.share_rows([learner], sample.own_targets)
    return updates.rows[id(learner)]


def start_updates(
    trainer: Trainer, sample: PilotSample, context: StepContext, methods: Sequence[Method] = ()
) -> PlacedUpdates:
    """The run's updates on a sample; `methods`: beside those of the run."""
    return PlacedUpdates(
        team=trainer.state.team,
        experience=sample.experience,
        context=context,
        turns={},
        show_phase=trainer.console.show_phase,
        shared=sample.shared_targets,
        methods=[*trainer.methods, *methods],
    )


def build_batch(learner: Learner, rows: LearnerRows, context: StepContext) -> Minibatch | None:
    """All drawn rows as one mini-batch; None without a trainable token on any rank. Collective over the holders."""
    rollout, targets = concatenate_agents(learner, rows.rollouts, rows.targets, rows.views)
    agents = len(learner.agent_names) + len(learner.shared_authors)
    size = int(distributed.all_sum_groups(targets.sample_counts.sum()))
    batches = iterate_minibatches(rollout, targets, context, mini_batch_size=max(size, 1), epoch=0, agents=agents)
    return next(batches, None)


def _count_parts(trainer: Trainer, learner: Learner, prompts: int) -> int:
    """Parts with at least two prompts each, so that few of them lack a score."""
    parts = PILOT_PARTS
    if learner.group.is_member:
        trained = sum(param.numel() for param in learner.engine.module.parameters() if param.requires_grad)
        parts = count_pilot_parts(FP32_BYTES * trained * len(learner.agent_names) / learner.group.size)
    if distributed.any_rank(parts < PILOT_PARTS):
        parts = FEWEST_PILOT_PARTS
    return max(min(parts, prompts // 2), 2)


def _gradients_by_agent(learner: Learner, batch: Minibatch | None, context: StepContext) -> Iterator[list[Tensor]]:
    """One whole gradient exists at a time. Collective over the holders."""
    if batch is None:
        for _ in learner.agent_names:
            yield learner.engine.compute_gradient([])
    elif len(learner.agent_names) == 1:
        yield _policy_gradient(learner, batch, context)
    else:
        for _, part in split_roles(learner, batch):
            yield _policy_gradient(learner, part, context)


def _keep_share(gradient: Sequence[Tensor]) -> list[Tensor]:
    """This rank's share of a gradient, in host memory."""
    return [share.cpu() for share in own_share(gradient)]


def _policy_gradient(learner: Learner, batch: Minibatch, context: StepContext) -> list[Tensor]:
    """The gradient of the policy's loss alone, without that of a value head on it. Collective over the holders."""

    def totals() -> Iterator[Tensor]:
        for micro_batch in learner.iterate_micro_batches(batch):
            progress.heartbeat()
            yield learner.losses(micro_batch, context)["policy"].total

    return learner.engine.compute_gradient(totals())


def _measure_gradients(
    learner: Learner, gradients_by_part: Sequence[Sequence[Sequence[Tensor]]], rows: int
) -> PolicyGradient:
    names = learner.agent_names
    flat = [gradient for part in gradients_by_part for gradient in part]
    local = torch.stack([torch.stack([scalar_product(left, right) for right in flat]) for left in flat])
    device = next(learner.engine.module.parameters()).device
    shape = len(gradients_by_part), len(names)
    products = distributed.all_sum(local.to(device)).view(*shape, *shape)

    def measure(matrix: Tensor) -> GradientSignal:
        return measure_signal(matrix.tolist(), max(rows, 1), learner.mini_batch_size)

    return PolicyGradient(
        whole=measure(products.sum(dim=(1, 3))),
        by_agent={name: measure(products[:, place, :, place]) for place, name in enumerate(names)},
    )
