"""Rules of methods of training: those of one method alone, and one line for each rule."""

from __future__ import annotations

from collections.abc import Iterator

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.needs import check_needs
from ippo_cli.config.rewards import needs_whole_batch
from ippo_cli.config.role_gradients import check_role_gradients
from ippo_cli.config.schema import Config, CreditAssignment, NormalizationScope
from ippo_cli.config.shared_rollouts import check_shared_rollouts
from ippo_cli.config.vllm import check_ahead


def check_curriculum(config: Config) -> Iterator[ConfigError]:
    """The band is an interval, levels have a field, and scores are known before the next prompts are drawn."""
    settings = config.task.curriculum
    low, high = settings.band_low, settings.band_high
    if (low is None) != (high is None) or (low is not None and high is not None and low > high):
        yield ConfigError(
            f"task.curriculum.band_low={low} band_high={high}",
            "are not an interval",
            "set both, the first at most the second, or neither; 0.2 and 0.8 exclude prompts that are nearly always "
            "right or wrong",
        )
    setting = f"task.curriculum.level_field={settings.level_field} task.curriculum.levels={settings.levels}"
    if settings.level_field is None and settings.levels:
        yield ConfigError(setting, "name levels and no field of rows", "set task.curriculum.level_field, or levels=[]")
    if settings.level_field is not None and len(set(settings.levels)) < max(2, len(settings.levels)):
        yield ConfigError(
            setting,
            "need at least two levels, each once",
            "name the values of the field, the easiest first: task.curriculum.levels=[easy,hard]",
        )


def check_refill(config: Config) -> Iterator[ConfigError]:
    """Settings with which groups of equal scores have a signal, or that need the prompts of an iteration in advance."""
    rounds = config.rollout.refill_rounds
    if not rounds:
        return
    setting = f"rollout.refill_rounds={rounds}"
    if config.rollout.num_generations < 2:
        yield ConfigError(
            f"{setting} rollout.num_generations={config.rollout.num_generations}",
            "replaces groups of responses with equal scores, and a group of one response has no differences",
            "use rollout.num_generations=8, or rollout.refill_rounds=0",
        )
    if config.reward.credit_assignment is not CreditAssignment.none:
        yield ConfigError(
            f"{setting} reward.credit_assignment={config.reward.credit_assignment.value}",
            "would discard groups of equal scores, and their credit may differ",
            "use reward.credit_assignment=none, or rollout.refill_rounds=0",
        )
    if config.algorithm.normalization_scope is NormalizationScope.team:
        yield ConfigError(
            f"{setting} algorithm.normalization_scope=team",
            "would discard groups in which each agent's scores are equal, and scores that differ between agents train",
            "use algorithm.normalization_scope=agent, or rollout.refill_rounds=0",
        )
    if config.algorithm.kl.reward.coef:
        yield ConfigError(
            f"{setting} algorithm.kl.reward.coef={config.algorithm.kl.reward.coef:g}",
            "would discard groups of equal scores, and their KL terms differ",
            "use algorithm.kl.loss.coef, or rollout.refill_rounds=0",
        )
    if needs_whole_batch(config.reward):
        yield ConfigError(
            f"{setting} reward.whole_batch=true",
            "compares the rows of a batch, and additional rounds are scored separately",
            "set reward.whole_batch=false, or rollout.refill_rounds=0",
        )


METHOD_RULES = (
    check_ahead,
    check_refill,
    check_curriculum,
    check_shared_rollouts,
    check_role_gradients,
    check_needs,
)
"""Each rule yields all errors, or raises the first; evaluations skip them."""
