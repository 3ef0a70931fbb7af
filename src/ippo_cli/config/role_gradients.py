"""Rules of `team.role_gradients_every` and `team.role_balance`: agents that train the same weights."""

from __future__ import annotations

from collections.abc import Iterator

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, Mode, RoleBalance, SharedPolicyConfig
from ippo_cli.config.teams import agents_by_critic, trained_agents_by_policy

BEST_ALPHA = 1.5  # of the paper for unlike tasks


def role_balance(config: Config) -> RoleBalance:
    """How the losses of agents with shared weights are weighted."""
    team = find_shared_policy(config)
    return RoleBalance.none if team is None else team.role_balance


def find_shared_policy(config: Config) -> SharedPolicyConfig | None:
    """The settings of a team that shares policies; None for other teams."""
    return config.team if isinstance(config.team, SharedPolicyConfig) else None


def roles_by_policy(config: Config) -> dict[str, tuple[str, ...]]:
    """The agents of each policy that trains several."""
    return {name: agents for name, agents in trained_agents_by_policy(config).items() if len(agents) > 1}


def roles_by_learner(config: Config) -> dict[str, tuple[str, ...]]:
    """The agents of each policy or critic that trains several, by the name of its weights."""
    critics = {name: agents for name, agents in agents_by_critic(config).items() if len(agents) > 1}
    return critics | roles_by_policy(config)


def check_role_gradients(config: Config) -> Iterator[ConfigError]:
    """Yield an error for each setting with which parts of gradients cannot be measured or weighted."""
    yield from _check_measurement(config)
    yield from _check_balance(config)


def _check_measurement(config: Config) -> Iterator[ConfigError]:
    every, deepspeed = config.team.role_gradients_every, config.deepspeed
    if not every:
        return
    setting, off = f"team.role_gradients_every={every}", "team.role_gradients_every=0"
    roles = roles_by_learner(config)
    if not roles:
        yield ConfigError(
            setting,
            "compares agents that train the same weights, and here each policy and critic is trained by one agent",
            f"use team=shared_policy with several trained agents in a group, or {off}",
        )
    if deepspeed.stage == 3:
        yield ConfigError(
            f"deepspeed.stage=3 {setting}",
            "shards weights over ranks, and the agents' gradients of whole weights are compared",
            f"use deepspeed=zero0, zero1 or zero2, or {off}",
        )
    for key in ("tensor_parallel", "sequence_parallel"):
        if (size := getattr(deepspeed, key)) > 1:
            yield ConfigError(
                f"deepspeed.{key}={size} {setting}",
                "divides each gradient among ranks, and the agents' whole gradients are compared",
                f"use deepspeed.{key}=1, or {off}",
            )
    if roles and (coef := config.algorithm.router_loss_coef):
        yield ConfigError(
            f"algorithm.router_loss_coef={coef:g} {setting}",
            "adds a loss of whole micro-batches, which is not a sum over the agents' rows",
            f"use algorithm.router_loss_coef=0, or {off}",
        )


def _check_balance(config: Config) -> Iterator[ConfigError]:
    balance, team = role_balance(config), config.team
    setting = f"team.role_balance={balance.value}"
    for key, example in (("gradnorm_alpha", BEST_ALPHA), ("gradnorm_best_score", 1)):
        value = getattr(team, key, None)
        if balance is RoleBalance.gradnorm and value is None:
            yield ConfigError(f"team.{key}=null", f"is required by {setting}", f"use a number, such as {example:g}")
        if balance is not RoleBalance.gradnorm and value is not None:
            yield ConfigError(
                f"team.{key}={value:g}", f"has no effect: {setting}", "set team.role_balance=gradnorm, or use null"
            )
    if balance is RoleBalance.none:
        return
    if not roles_by_policy(config):
        yield ConfigError(
            setting,
            "weighs the losses of agents that share a policy, and here each policy is trained by one agent",
            "put several trained agents into a group of team.groups, or use team.role_balance=none",
        )
    if not team.role_gradients_every:
        yield ConfigError(
            "team.role_gradients_every=0",
            f"measures no norms, from which {setting} computes its weights",
            "use team.role_gradients_every=1, or team.role_balance=none",
        )
    if config.mode is Mode.critic:
        yield ConfigError(setting, "weighs the losses of policies, which mode=critic does not train", "use none")
