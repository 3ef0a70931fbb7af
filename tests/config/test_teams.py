"""Weight sharing and names of policies, critics and bases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.teams import agents_by_base, agents_by_critic, agents_by_policy, base_by_policy, policy_by_agent

Make = Callable[..., Any]
FROZEN = ("task.agents.high.frozen=true",)


def test_independent_agents_have_their_own_weights(config: Make) -> None:
    assert agents_by_policy(config()) == {"low": ("low",), "high": ("high",)}


def test_default_group_has_all_agents(config: Make) -> None:
    assert agents_by_policy(config(("team=shared_policy",))) == {"shared": ("low", "high")}


def test_agents_by_policy_with_groups(config: Make) -> None:
    third = ("team=shared_policy", "++task.agents={mid:{}}", "task.agents.mid.template=x", "task.agents.mid.answer=x")
    made = config(third, **{"team.groups": {"pair": ["mid", "low"]}})
    assert agents_by_policy(made) == {"pair": ("low", "mid"), "high": ("high",)}
    assert policy_by_agent(made) == {"low": "pair", "mid": "pair", "high": "high"}


@pytest.mark.parametrize("typed", ["team.groups={pair:[low,high]}", "team.groups.pair=[low,high]"])
def test_groups_on_the_command_line(typed: str) -> None:
    assert agents_by_policy(load_config(normalize_arguments(["team=shared_policy", typed]))) == {
        "pair": ("low", "high")
    }


def test_group_may_differ_in_sampling(config: Make) -> None:
    own = {"task.agents.high.rollout.max_new_tokens": 4, "task.agents.high.rollout.top_k": 3}
    check_config(config(("team=shared_policy",), **own), 1)


def test_shared_critic_with_own_epochs() -> None:
    typed = ["algorithm=mappo", "critic.shared=true", "critic.ppo_epochs=2", "task.agents.high.algorithm.ppo_epochs=3"]
    check_config(load_config(normalize_arguments(typed)), 1)


def test_frozen_agent_of_another_kind() -> None:
    check_config(
        load_config(
            normalize_arguments([*FROZEN, "task.agents.high.actor=full", "task.agents.high.actor.model=some/model"])
        ),
        1,
    )


def test_groups_need_a_sharing_team() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^team\.groups is not a key of team=independent; use team=shared_policy or team=shared_base$",
    ):
        load_config(normalize_arguments(["team.groups={pair:[low,high]}"]))


def test_agents_by_critic(config: Make) -> None:
    assert agents_by_critic(config(("critic=value_head",))) == {}
    assert agents_by_critic(config()) == {"low": ("low",), "high": ("high",)}
    assert agents_by_critic(config(("critic=centralized", "team=shared_policy"))) == {"shared": ("low", "high")}
    shared = {"critic.shared": True}
    assert agents_by_critic(config(("critic=centralized",), **shared)) == {"team": ("low", "high")}
    assert agents_by_critic(config(("critic=centralized", "team=shared_policy"), **shared)) == {"team": ("low", "high")}


def test_shared_critic_settings_and_name(config: Make) -> None:
    unequal = config(("critic=centralized",), **{"critic.shared": True, "task.agents.high.critic.learning_rate": 1e-4})
    wanted = (
        r"^task.agents.high.critic.learning_rate=0.0001 differs from low's 0.001, and critic.shared=true has one "
        r"for all; set critic.learning_rate for all agents, or use critic.shared=false$"
    )
    with pytest.raises(ConfigError, match=wanted):
        check_config(unequal, 1)
    unequal.critic.shared = unequal.task.agents["high"].critic.shared = False
    unequal.task.agents["low"].critic.shared = False
    check_config(unequal, 1)
    named = config(
        ("critic=centralized", "team=shared_policy"), **{"critic.shared": True, "team.groups": {"team": ["low"]}}
    )
    with pytest.raises(
        ConfigError, match=r"^critic.shared=true creates a critic named team, and an agent or a group has"
    ):
        check_config(named, 1)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["critic=adapter"],
            "critic=adapter needs a frozen base, and actor=tiny trains all of low's model; use actor=lora",
        ),
        (["team=shared_base"], "team=shared_base freezes the base of shared, and actor=tiny of low trains all of it"),
        (
            ["actor=tiny_lora", "deepspeed=zero3"],
            "deepspeed.stage=3 shards trained weights .* actor=tiny_lora trains an adapter",
        ),
        (["actor=tiny_lora", "actor.target_modules=q_proj"], "is neither all-linear nor a list of names"),
        (
            ["actor=tiny_lora", "actor.model=x"],
            "cannot be set for actor=tiny_lora, which is created locally; use actor=lora",
        ),
        (["actor=lora"], "actor.model=null names no weights for agent low; .* use actor=tiny_lora"),
        (
            ["actor=tiny_lora", "team=shared_base", "task.agents.high.actor.hidden_size=64"],
            "task.agents.high.actor.hidden_size=64 differs from low's 128, and both are in group shared, which has one",
        ),
    ],
)
def test_invalid_adapters_and_bases(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(load_config(overrides), 1)


def test_shared_base_with_different_adapters() -> None:
    own = ["task.agents.high.actor.rank=4", "task.agents.high.actor.learning_rate=0.1", "task.agents.low.critic.rank=2"]
    config = load_config(["actor=tiny_lora", "critic=adapter", "team=shared_base", *own])
    check_config(config, 1)
    assert agents_by_policy(config) == {"low": ("low",), "high": ("high",)}
    assert agents_by_base(config) == {"shared": ("low", "high")}
    assert base_by_policy(config) == {"low": "shared", "high": "shared"}
