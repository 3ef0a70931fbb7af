"""Rules of `algorithm.turn_groups`: candidates for each turn of an episode."""

from __future__ import annotations

from collections.abc import Iterator

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import (
    Advantage,
    Config,
    FollowedCandidate,
    ProgramConfig,
)


def check_turn_groups(config: Config) -> Iterator[ConfigError]:
    """Settings that rows with candidates, or branches of episodes, do not support."""
    if config.algorithm.estimator is not Advantage.turn_group:
        return
    base = "algorithm.advantage=turn_group"
    if config.reward.measure_credit_every and config.algorithm.turn_groups.follow is FollowedCandidate.best:
        yield ConfigError(
            f"reward.measure_credit_every={config.reward.measure_credit_every}",
            f"does not support {base}: it measures episodes that are selected by their returns with "
            "algorithm.turn_groups.follow=best",
            "use 0, or follow=random",
        )
    if isinstance(config.task, ProgramConfig):
        yield ConfigError(
            "task=program",
            f"does not support {base}: it runs programs that cannot be continued from a state",
            "use a task with turns",
        )
