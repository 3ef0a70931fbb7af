"""Rules of `algorithm.advantage=monte_carlo`: continuations have the policies and the scores of their episodes."""

from __future__ import annotations

from collections.abc import Iterator

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.rewards import buffer_dependent_scores
from ippo_cli.config.schema import Advantage, Config

SETTING = "algorithm.advantage=monte_carlo"


def check_monte_carlo(config: Config) -> Iterator[ConfigError]:
    """Yield every reason why continuations would not have the returns of their episodes."""
    if config.algorithm.advantage is not Advantage.monte_carlo:
        return
    for setting, reason, remedy in buffer_dependent_scores(config.reward):
        yield ConfigError(
            setting,
            f"{reason}, and {SETTING} compares scores of responses with scores of continuations",
            f"use {remedy}, or another algorithm",
        )
    if config.team.opponent_pool.every:
        yield ConfigError(
            f"team.opponent_pool.every={config.team.opponent_pool.every}",
            f"plays some episodes with earlier policies, and the continuations of {SETTING} have the current ones",
            "use team.opponent_pool.every=0, or another algorithm",
        )
