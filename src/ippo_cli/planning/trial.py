"""Checks of a run's task, environment and reward before files are written or models are read."""

from __future__ import annotations

from ippo_cli.config.batch_sizes import compute_batch_sizes
from ippo_cli.config.schema import Advantage, Config, has_own_loss
from ippo_cli.reporting.trackers.build import check_tracker_usable
from ippo_cli.tasks.task import load_task


def check_trainable(config: Config, ranks: int) -> None:
    """Raise the errors that training would raise for the data, the user's code and the batch sizes.

    Builds the reward, loads the callback and tries the device only if training runs in this process. A launcher of
    several ranks keeps running beside them and must not hold a reward model; there, the ranks report these errors.
    """
    if ranks > 1:
        check_tracker_usable(config.tracker, loads_code=False)
        compute_batch_sizes(config, ranks, len(load_task(config.task, config.seed).train))
        if config.algorithm.estimator is Advantage.function or has_own_loss(config.algorithm.objective):
            from ippo_cli.planning.prepare import check_user_methods

            check_user_methods(config)
        return
    # These import transformers, which the launcher does not need.
    from ippo_cli.planning.prepare import Purpose, check_user_methods, load_task_and_reward
    from ippo_cli.planning.resources import device_kind
    from ippo_cli.planning.served_agents import check_servers
    from ippo_cli.rewards.contract import close_reward

    device_kind(config.launch.device)
    warnings: list[str] = []  # training prints them
    check_user_methods(config)
    _, reward = load_task_and_reward(config, ranks, Purpose.start, warnings.append)
    close_reward(reward)
    check_servers(config)
