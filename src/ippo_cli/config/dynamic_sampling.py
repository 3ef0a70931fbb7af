"""Checks of dynamic sampling, `rollout.refill_rounds`."""

from __future__ import annotations

from collections.abc import Iterator

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.rewards import needs_whole_batch
from ippo_cli.config.schema import Config, CreditAssignment, NormalizationScope


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
