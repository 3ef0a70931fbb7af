"""Checks of a run's task, environment and reward before files are written or models are read."""

from __future__ import annotations

from ippo_cli.config.batch_sizes import compute_batch_sizes
from ippo_cli.config.schema import Config
from ippo_cli.reporting.trackers.build import check_tracker_usable
from ippo_cli.tasks.task import load_task


def check_trainable(config: Config, ranks: int) -> None:
    """Raise the errors that training would raise for the data, the user's code and the batch sizes.

    Builds the reward, loads the callback and tries the device only if training runs in this process. A launcher of
    several ranks keeps running beside them and must not hold a reward model; there, the ranks report these errors.
    """
    check_tracker_usable(config.tracker, loads_code=ranks == 1)
    task = load_task(config.task, config.seed)
    if ranks == 1:
        from ippo_cli.planning.preflight import device_kind
        from ippo_cli.planning.reward_trial import check_primary_metric
        from ippo_cli.rewards.build import build_reward  # imports transformers, which the launcher does not need
        from ippo_cli.rewards.contract import (
            check_reward_connection,
            close_reward,
            sample_examples,
            validate_reward_examples,
        )
        from ippo_cli.rewards.processors import check_processor_functions

        device_kind(config.launch.device)
        check_processor_functions(config.reward.processor)
        reward = build_reward(config.reward, config.task.agents)
        try:
            validate_reward_examples(reward, sample_examples(task.train, task.held_out))
            check_reward_connection(reward)
            check_primary_metric(config, task)
        finally:
            close_reward(reward)
    compute_batch_sizes(config, ranks, len(task.train))
