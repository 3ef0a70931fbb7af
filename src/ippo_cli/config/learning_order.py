"""Rules of who learns when: what an order needs, and what would have no effect."""

from __future__ import annotations

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, ConversationConfig, UpdateOrder
from ippo_cli.config.teams import learning_members

ONE_AFTER_ANOTHER = ("sequential", "dialogue")  # protocols in which no two agents act at the same step


def check_learning_order(config: Config) -> None:
    """Raise `ConfigError` for the first rule that is broken."""
    order, every = config.team.update_order, config.team.round_robin_every
    policies = learning_members(config)
    if order is not UpdateOrder.simultaneous and len(policies) < 2:
        raise ConfigError(
            f"team.update_order={order.value}",
            f"puts policies in an order, and only {' '.join(policies)} learns",
            "use team.update_order=simultaneous, or team=independent with several agents that learn"
            + (" (algorithm=ppo is algorithm=happo of one policy)" if order is UpdateOrder.sequential else ""),
        )
    if order is UpdateOrder.round_robin and every is None:
        raise ConfigError("team.round_robin_every=null", "is needed by team.update_order=round_robin", "use 1")
    if order is not UpdateOrder.round_robin and every is not None:
        raise ConfigError(
            f"team.round_robin_every={every}", f"would do nothing: team.update_order={order.value}", "use null"
        )
    _check_correction(config)


def _check_correction(config: Config) -> None:
    order, pooling = config.team.update_order, config.algorithm.sequential_correction.pooling
    if order is UpdateOrder.sequential and pooling is None:
        raise ConfigError(
            "team.update_order=sequential",
            "changes no number without a correction: every policy has an optimizer and rows of its own",
            "use algorithm=happo, or algorithm.sequential_correction.pooling=sum or mean",
        )
    if order is not UpdateOrder.sequential and pooling is not None:
        raise ConfigError(
            f"algorithm.sequential_correction.pooling={pooling.value}",
            f"corrects for what was updated before, and with team.update_order={order.value} nothing is",
            "use null, or team.update_order=sequential",
        )
    task = config.task
    if pooling is not None and isinstance(task, ConversationConfig) and task.protocol in ONE_AFTER_ANOTHER:
        raise ConfigError(
            f"algorithm.sequential_correction.pooling={pooling.value}",
            f"corrects for what others do at the same step, and with task.protocol={task.protocol} each step is one "
            "agent's: every factor would be 1",
            "use task.protocol=parallel, or algorithm=ppo team.update_order=simultaneous",
        )
