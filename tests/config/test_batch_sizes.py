"""Batch sizes from the configuration."""

from __future__ import annotations

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.config.batch_sizes import fit_mini_batch
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError


@pytest.mark.parametrize(
    ("preset", "buffer", "fitted"),
    [
        (128, 512, 128),
        (128, 64, 64),
        (128, 1, 1),
        (128, 200, 100),
        (128, 130, 65),
        (128, 192, 96),
        (128, 262, 128),  # no divisor between 64 and 128: the preset is unchanged and rejected by the checks
        (4, 6, 3),
        (1, 7, 1),
        (128, 0, 1),
    ],
)
def test_fit_mini_batch(preset: int, buffer: int, fitted: int) -> None:
    assert fit_mini_batch(preset, buffer) == fitted


def test_typed_mini_batch_is_not_fitted() -> None:
    config = load_config(["algorithm=ppo", "rollout.buffer_size=64", "task.agents.low.algorithm.ppo_epochs=1"])
    check_config(config, 1)
    assert config.algorithm.mini_batch_size == 64
    assert {agent.algorithm.mini_batch_size for agent in config.task.agents.values()} == {64}
    with pytest.raises(ConfigError, match=r"algorithm\.mini_batch_size=128 does not divide rollout\.buffer_size=64"):
        check_config(load_config(["algorithm=ppo", "rollout.buffer_size=64", "algorithm.mini_batch_size=128"]), 1)
