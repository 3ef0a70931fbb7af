"""Rules of the update order and the opponent pool."""

from __future__ import annotations

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, ConversationConfig, UpdateOrder
from ippo_cli.config.teams import trained_agents_by_policy

SEQUENTIAL_PROTOCOLS = ("sequential", "dialogue", "calls")  # protocols in which no two agents act at the same step


def check_learning_order(config: Config) -> None:
    """Raise `ConfigError` for the first broken rule."""
    order, every = config.team.update_order, config.team.round_robin_every
    policies = trained_agents_by_policy(config)
    if not policies:
        raise ConfigError(
            f"task.agents.{next(iter(config.task.agents))}.frozen=true",
            "leaves no trainable agent",
            "set frozen=false for at least one agent, or use ippo-eval",
        )
    if order is not UpdateOrder.simultaneous and len(policies) < 2:
        raise ConfigError(
            f"team.update_order={order.value}",
            f"needs at least two trainable policies, and only {' '.join(policies)} is trained",
            "use team.update_order=simultaneous, or team=independent with several trainable agents"
            + (" (algorithm=ppo equals algorithm=happo with one policy)" if order is UpdateOrder.sequential else ""),
        )
    if order is UpdateOrder.round_robin and every is None:
        raise ConfigError("team.round_robin_every=null", "is needed by team.update_order=round_robin", "use 1")
    if order is not UpdateOrder.round_robin and every is not None:
        raise ConfigError(
            f"team.round_robin_every={every}",
            f"has no effect: team.update_order={order.value}",
            "set team.update_order=round_robin, or remove it",
        )
    _check_correction(config)
    _check_opponent_pool(config)


def _check_correction(config: Config) -> None:
    order, pooling = config.team.update_order, config.algorithm.sequential_correction.pooling
    if order is UpdateOrder.sequential and pooling is None:
        raise ConfigError(
            "team.update_order=sequential",
            "has no effect without a correction: every policy has its own optimizer and rows",
            "use algorithm=happo, or algorithm.sequential_correction.pooling=sum or mean",
        )
    if order is not UpdateOrder.sequential and pooling is not None:
        raise ConfigError(
            f"algorithm.sequential_correction.pooling={pooling.value}",
            f"corrects for policies updated earlier, and team.update_order={order.value} has none",
            "use null, or team.update_order=sequential",
        )
    cap = config.algorithm.sequential_correction.cap
    if cap is not None and cap < 1:
        raise ConfigError(
            f"algorithm.sequential_correction.cap={cap:g}",
            "truncates factors below 1, the factor of an unchanged policy, and so reduces all advantages",
            "use at least 1, such as 2.0, or null",
        )
    task = config.task
    if pooling is not None and isinstance(task, ConversationConfig) and task.protocol in SEQUENTIAL_PROTOCOLS:
        raise ConfigError(
            f"algorithm.sequential_correction.pooling={pooling.value}",
            f"corrects for simultaneous actions, and with task.protocol={task.protocol} only one agent acts at each "
            "step: every factor is 1",
            "use task.protocol=parallel, or algorithm=ppo team.update_order=simultaneous",
        )


def _check_opponent_pool(config: Config) -> None:
    pool = config.team.opponent_pool
    learning = [name for name, agent in config.task.agents.items() if not agent.frozen]
    for key, example in (("size", "8"), ("share", "0.5")):
        value = getattr(pool, key)
        if pool.every and value is None:
            raise ConfigError(f"team.opponent_pool.{key}=null", "is required by the opponent pool", f"use {example}")
        if not pool.every and value is not None:
            raise ConfigError(
                f"team.opponent_pool.{key}={value}",
                "has no effect: team.opponent_pool.every=0 keeps no snapshots",
                "use null",
            )
    if not pool.every:
        if pool.elo:
            raise ConfigError(
                "team.opponent_pool.elo=true",
                "rates policies by games with snapshots, and team.opponent_pool.every=0 keeps none",
                "set team.opponent_pool.every, or use false",
            )
        return
    if len(learning) < 2:
        raise ConfigError(
            f"team.opponent_pool.every={pool.every}",
            f"needs at least two trainable agents, and only {' '.join(learning)} is trained",
            "use team.opponent_pool.every=0, or add a second trainable agent",
        )
    assert pool.share is not None
    prompts = config.rollout.buffer_size // config.rollout.num_generations
    if round(pool.share * prompts) == 0:
        raise ConfigError(
            f"team.opponent_pool.share={pool.share}",
            f"is less than one of the {prompts} prompts of an iteration",
            f"use at least {1 / prompts:.3g}",
        )
    if not pool.elo:
        return
    if len(config.task.agents) != 2 or len(learning) != 2:
        raise ConfigError(
            "team.opponent_pool.elo=true", "needs two trainable agents", "use false, or a task with two agents"
        )
    if isinstance(config.task, ConversationConfig) and not config.task.protocol.partition(":")[0].endswith(".py"):
        raise ConfigError(
            "team.opponent_pool.elo=true",
            f"compares rewards of the environment, and task.kind={config.task.kind} has none",
            "use false, or task=pettingzoo, task=environment or your own protocol that returns rewards",
        )
