"""Rules of who learns when: what an order needs, and what would have no effect."""

from __future__ import annotations

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, ConversationConfig, CreditAssignment, UpdateOrder
from ippo_cli.config.teams import trained_agents_by_policy

SEQUENTIAL_PROTOCOLS = ("sequential", "dialogue")  # protocols in which no two agents act at the same step


def check_learning_order(config: Config) -> None:
    """Raise `ConfigError` for the first rule that is broken."""
    order, every = config.team.update_order, config.team.round_robin_every
    policies = trained_agents_by_policy(config)
    if not policies:
        raise ConfigError(
            f"task.agents.{next(iter(config.task.agents))}.frozen=true",
            "leaves no trainable agent",
            "let at least one agent learn, or use ippo-eval",
        )
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
            f"team.round_robin_every={every}",
            f"has no effect: team.update_order={order.value}",
            "set team.update_order=round_robin as well, or leave it out",
        )
    _check_correction(config)
    _check_opponent_pool(config)


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
    cap = config.algorithm.sequential_correction.cap
    if cap is not None and cap < 1:
        raise ConfigError(
            f"algorithm.sequential_correction.cap={cap:g}",
            "truncates factors below 1, which they are where nothing has changed: advantages would only be smaller",
            "use at least 1, such as 2.0, or null",
        )
    task = config.task
    if pooling is not None and isinstance(task, ConversationConfig) and task.protocol in SEQUENTIAL_PROTOCOLS:
        raise ConfigError(
            f"algorithm.sequential_correction.pooling={pooling.value}",
            f"corrects for what others do at the same step, and with task.protocol={task.protocol} each step is one "
            "agent's: every factor would be 1",
            "use task.protocol=parallel, or algorithm=ppo team.update_order=simultaneous",
        )


def _check_opponent_pool(config: Config) -> None:
    partners, learning = config.team.partners, [n for n, agent in config.task.agents.items() if not agent.frozen]
    for key, example in (("size", "8"), ("share", "0.5")):
        value = getattr(partners, key)
        if partners.every and value is None:
            raise ConfigError(f"team.partners.{key}=null", "is needed by a pool of partners", f"use {example}")
        if not partners.every and value is not None:
            raise ConfigError(
                f"team.partners.{key}={value}", "has no effect: team.partners.every=0 keeps no snapshots", "use null"
            )
    if not partners.every:
        if partners.elo:
            raise ConfigError(
                "team.partners.elo=true",
                "rates policies by games with snapshots, and team.partners.every=0 keeps none",
                "set team.partners.every, or use false",
            )
        return
    if len(learning) < 2:
        raise ConfigError(
            f"team.partners.every={partners.every}",
            f"keeps snapshots that speak in the place of others who learn, and only {' '.join(learning)} learns",
            "use team.partners.every=0, or name a second agent that learns",
        )
    if config.reward.credit_assignment is not CreditAssignment.none or config.reward.measure_credit_every:
        raise ConfigError(
            f"team.partners.every={partners.every}",
            "lets snapshots speak for agents, whose credit is then not theirs",
            "use team.partners.every=0, or reward.credit_assignment=none reward.measure_credit_every=0",
        )
    assert partners.share is not None
    prompts = config.rollout.buffer_size // config.rollout.num_generations
    if round(partners.share * prompts) == 0:
        raise ConfigError(
            f"team.partners.share={partners.share}",
            f"is less than one of the {prompts} prompts of an iteration",
            f"use at least {1 / prompts:.3g}",
        )
    if not partners.elo:
        return
    if len(config.task.agents) != 2 or len(learning) != 2:
        raise ConfigError(
            "team.partners.elo=true", "rates games of two agents that both learn", "use false, or a task of two agents"
        )
    if isinstance(config.task, ConversationConfig) and not config.task.protocol.partition(":")[0].endswith(".py"):
        raise ConfigError(
            "team.partners.elo=true",
            f"compares what agents are paid, and task.kind={config.task.kind.value} pays nobody",
            "use false, or task=pettingzoo, task=environment or a protocol of your own that pays",
        )
