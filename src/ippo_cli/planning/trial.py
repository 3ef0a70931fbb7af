"""What is wrong with a run's task, environment or reward, told before anything is written or any model looked at."""

from __future__ import annotations

from ippo_cli.config.batch_sizes import compute_batch_sizes
from ippo_cli.config.schema import Config
from ippo_cli.reporting.trackers.build import check_tracker_usable
from ippo_cli.tasks.task import load_task


def check_trainable(config: Config, ranks: int) -> None:
    """Raise what training would raise of the data, the user's code and the sizes.

    A reward is made, a callback loaded and the device tried where training is in this process. One that starts ranks
    stays beside them, and a reward may hold a model: there the ranks tell what is wrong.
    """
    check_tracker_usable(config.tracker, loads_code=ranks == 1)
    task = load_task(config.task, config.seed)
    if ranks == 1:
        from ippo_cli.planning.preflight import device_kind
        from ippo_cli.planning.reward_trial import check_primary_metric
        from ippo_cli.rewards.build import build_reward  # imports transformers, which who starts ranks never needs
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
