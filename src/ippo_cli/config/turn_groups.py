"""Rules of `algorithm.turn_groups`: candidates for each turn of an episode."""

from __future__ import annotations

from collections.abc import Iterator

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.rewards import needs_whole_batch
from ippo_cli.config.schema import (
    Advantage,
    Config,
    CreditAssignment,
    ProgramConfig,
    RatioLevel,
    Reweight,
    Truncation,
    UpdateOrder,
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
            config.reward.credit_assignment is not CreditAssignment.none,
            f"reward.credit_assignment={config.reward.credit_assignment.value}",
            "gives scores of episodes a baseline, and candidates already have one",
            "use none",
        ),
        (
            needs_whole_batch(config.reward),
            "reward.whole_batch=true",
            "compares the rows of a batch, and candidates are scored in batches of one agent's turn",
            "use false",
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
            isinstance(config.task, ProgramConfig),
            "task=program",
            "runs programs that cannot be continued from a state",
            "use a task with turns",
        ),
    ]
    for is_refused, setting, rule, remedy in refused:
        if is_refused:
            yield ConfigError(setting, f"does not support {base}: it {rule}", remedy)
