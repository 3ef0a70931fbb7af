"""Update of one learner: one optimizer step per mini-batch over all ranks, split into micro-batches on each rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from torch.profiler import record_function

from ippo_cli.agents.learner import Learner
from ippo_cli.config.errors import NonFiniteError
from ippo_cli.engine import distributed, progress
from ippo_cli.engine.host_memory import release_free_memory
from ippo_cli.engine.zero import StepResult
from ippo_cli.reporting.accumulator import MetricAccumulator
from ippo_cli.reporting.iteration_metrics import add_prefix
from ippo_cli.runs.faults import fault_point
from ippo_cli.training.minibatches import OptimizerStep
from ippo_cli.types import StepContext

MAX_SKIPPED_IN_A_ROW = 5

UpdateStats = dict[str, float]


def update_learner(
    learner: Learner,
    steps: Iterator[OptimizerStep],
    context: StepContext,
    *,
    turns: Mapping[str, int] = MappingProxyType({}),
    is_resting: bool = False,
) -> UpdateStats:
    """Train one learner for one iteration with these optimizer steps; returns its metrics by full name.

    `turns`: by agent, the number of first turns with metrics. If `is_resting`, only the learning rate is set. Metrics
    are the same on every rank.
    """
    factor = learner.set_learning_rate(context.iteration, context.num_iterations)
    stats = {f"{learner.name}/{learner.stage}/learning_rate": factor * learner.optimizer.learning_rate}
    if not is_resting and learner.objective.is_active(context):
        is_named = learner.member is None or not learner.member.index  # metrics by agent are those of the first critic
        accumulator = MetricAccumulator.for_learner(learner.name, learner.agent_names, turns if is_named else {})
        with record_function(f"ippo/update/{learner.name} {learner.stage}"):
            step_stats = _run_steps(learner, steps, context, accumulator)
            stats |= add_prefix(f"{learner.name}/{learner.stage}", step_stats) | accumulator.means()
    return stats


def _run_steps(
    learner: Learner, steps: Iterator[OptimizerStep], context: StepContext, accumulator: MetricAccumulator
) -> UpdateStats:
    """Run the optimizer steps until a step's KL exceeds `target_kl`; returns their counts and gradient norms."""
    target_kl, stopped = learner.objective.target_kl, False
    count, applied, spikes, norms = 0, 0, 0, 0.0
    learner.engine.train()
    for step in steps:
        kl_before = accumulator.step_sum("policy/approx_kl").clone()
        result = _run_step(learner, step, context, accumulator)
        release_free_memory()
        _check_finite_gradients(learner, result)
        count += 1
        applied += result.applied
        if result.applied:
            norms += result.grad_norm
            spikes += learner.grad_norms.record(result.grad_norm)
        if target_kl is not None:
            kl = distributed.all_sum_groups(accumulator.step_sum("policy/approx_kl") - kl_before)
            stopped = float(kl) / max(step.num_tokens, 1) > target_kl
        if stopped:
            break
    learner.engine.eval()
    stats = {
        "grad_norm": norms / max(applied, 1),
        "grad_norm_spikes": float(spikes),
        "steps": float(count),
        "skipped_steps": float(count - applied),
    }
    return stats if target_kl is None else stats | {"stopped_early": float(stopped)}


def _run_step(
    learner: Learner, step: OptimizerStep, context: StepContext, accumulator: MetricAccumulator
) -> StepResult:
    """Accumulate gradients over a step's micro-batches, then step."""
    for micro_batch in step.micro_batches:
        fault_point("forward")
        losses = learner.losses(micro_batch, context)
        for prefix, loss in losses.items():
            accumulator.add(prefix, loss, micro_batch.rows, first_epoch=step.epoch == 0, first_step=step.is_first)
        fault_point("backward")
        progress.heartbeat()
        learner.backward(losses, micro_batch.rows.loss_weight)
    accumulator.count_tokens(step.num_tokens, first_epoch=step.epoch == 0)
    fault_point("step")
    return learner.engine.step()


def _check_finite_gradients(learner: Learner, result: StepResult) -> None:
    learner.consecutive_skips = 0 if result.applied else learner.consecutive_skips + 1
    if learner.consecutive_skips >= MAX_SKIPPED_IN_A_ROW:
        raise NonFiniteError(
            f"{learner.name}: {learner.consecutive_skips} consecutive optimizer steps of its {learner.stage} had NaN "
            "or infinite gradients and were skipped; lower the learning rates, or check the rewards in the samples"
        )
