"""What critics explain of later rewards after one update on half of a sample, judged on the other half."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ippo_cli.engine import distributed
from ippo_cli.pilot.change import HALVES
from ippo_cli.pilot.gradient import start_updates
from ippo_cli.pilot.sample import PilotSample
from ippo_cli.reporting.iteration_metrics import explained_variance
from ippo_cli.training.methods.reward_to_go import use_reward_to_go
from ippo_cli.training.trainer import Trainer
from ippo_cli.training.update import UpdateStats
from ippo_cli.types import StepContext


@dataclass(frozen=True, slots=True)
class CriticFit:
    """Explained variance of the sums of later rewards on the judged half; NaN where they do not vary."""

    before: float
    after: float


def fit_critics(trainer: Trainer, sample: PilotSample) -> tuple[dict[str, CriticFit], list[UpdateStats]]:
    """Update each value function as in the first iteration, which also changes a policy with a value head. Collective.

    Returns the fits by agent, and the metrics of the updates.
    """
    team, block = trainer.state.team, _block_rows(trainer)
    valued = [name for name, agent in team.items() if agent.has_values]
    if not valued:
        return {}, []
    before = _measure_values(trainer, sample)
    half = sample.select_part(0, HALVES, block)
    context = StepContext(seed=trainer.config.seed, iteration=0, num_iterations=trainer.plan.num_iterations)
    updates = start_updates(trainer, half, context)
    holders = {team[name].value_name for name in valued}
    fitted = [
        learner
        for learner in team.learners
        if not learner.is_policy or (learner.name in holders and learner.stage == "joint")
    ]
    updates.share_rows(fitted, half.own_targets)
    for learner in fitted:
        updates.run(learner)
    found = [distributed.gather_objects(updates.stats[id(learner)])[learner.group.ranks[0]] for learner in fitted]
    after = _measure_values(trainer, sample)
    return {name: CriticFit(before[name], after[name]) for name in valued}, found


def _block_rows(trainer: Trainer) -> int:
    """Rows of as many prompts as an ensemble has members: each half then has prompts of every member."""
    sizes = [learner.member.size for learner in trainer.state.team.learners if learner.member is not None]
    return trainer.config.rollout.num_generations * max(sizes, default=1)


def _measure_values(trainer: Trainer, sample: PilotSample) -> Mapping[str, float]:
    """Explained variance by agent, over the rows that no critic has been trained on. Collective."""
    config, team = trainer.config, trainer.state.team
    algorithm = use_reward_to_go(trainer.state.algorithm, config.algorithm.credit).without_bootstrap()
    targets, _ = algorithm.compute_targets(team, sample.experience)
    unseen = sample.rows_outside(0, HALVES, _block_rows(trainer))
    return {
        name: explained_variance(
            replace(own, value_mask=own.value_mask & unseen.to(own.value_mask.device)[:, None]), config.algorithm.gamma
        )
        for name, own in targets.items()
        if team[name].has_values
    }
