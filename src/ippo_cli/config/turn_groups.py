"""Rules of `algorithm.turn_groups`: candidates for each turn of an episode."""

from __future__ import annotations

from collections.abc import Iterator

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.rewards import buffer_dependent_scores
from ippo_cli.config.schema import (
    Advantage,
    Config,
    FollowedCandidate,
    ProgramConfig,
    RatioLevel,
    Reweight,
    Truncation,
    UpdateOrder,
    WeightLevel,
)
from ippo_cli.config.vllm import collects_ahead


def check_turn_groups(config: Config) -> Iterator[ConfigError]:
    """Settings that rows with candidates, or branches of episodes, do not support."""
    algorithm, team = config.algorithm, config.team
    if algorithm.advantage is not Advantage.turn_group:
        return
    base = "algorithm.advantage=turn_group"
    refused = [
        (collects_ahead(config), "rollout.ahead=1", "collects episodes without the scores of candidates", "use 0"),
        (
            team.opponent_pool.every > 0,
            f"team.opponent_pool.every={team.opponent_pool.every}",
            "plays episodes with earlier policies, which branches do not have",
            "use 0",
        ),
        (
            team.update_order is UpdateOrder.sequential,
            "team.update_order=sequential",
            "corrects steps of episodes, and candidates are in no episode that is trained on",
            "use simultaneous",
        ),
        (
            config.reward.measure_credit_every > 0 and algorithm.turn_groups.follow is FollowedCandidate.best,
            f"reward.measure_credit_every={config.reward.measure_credit_every}",
            "measures episodes that are selected by their returns with algorithm.turn_groups.follow=best",
            "use 0, or follow=random",
        ),
        (
            algorithm.kl.reward.coef != 0,
            f"algorithm.kl.reward.coef={algorithm.kl.reward.coef}",
            "would need the reference on every branch",
            "use 0, and algorithm.kl.loss.coef",
        ),
        (
            algorithm.reweight.method is not Reweight.none,
            f"algorithm.reweight.method={algorithm.reweight.method.value}",
            "draws rows by the score of their episode, and a row has candidates of several episodes",
            "use none",
        ),
        (
            algorithm.truncation is Truncation.mask,
            "algorithm.truncation=mask",
            "masks rows by the end of their episode, and a row has candidates of several episodes",
            "use penalty or none",
        ),
        (
            algorithm.ratio_level is RatioLevel.sequence,
            "algorithm.ratio_level=sequence",
            "pools the ratios of a row, which has several candidates",
            "use turn or token",
        ),
        (
            algorithm.positive_nll.coef != 0,
            f"algorithm.positive_nll.coef={algorithm.positive_nll.coef}",
            "raises the likelihood of rows with a high score, and a row has candidates of several episodes",
            "use 0",
        ),
        (
            algorithm.behavior_correction.level is WeightLevel.sequence,
            "algorithm.behavior_correction.level=sequence",
            "pools the ratios of a row, which has several candidates",
            "use token",
        ),
        (
            isinstance(config.task, ProgramConfig),
            "task=program",
            "runs programs that cannot be continued from a state",
            "use a task with turns",
        ),
    ]
    for is_refused, setting, rule, remedy in refused:
        if is_refused:
            yield ConfigError(setting, f"does not support {base}: it {rule}", remedy)
    for setting, rule, remedy in buffer_dependent_scores(config.reward):
        yield ConfigError(setting, f"does not support {base}: it {rule}", f"use {remedy}")
