"""Who shares weights, and under which name they go."""

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


def test_without_groups_all_agents_share(config: Make) -> None:
    assert agents_by_policy(config(("team=shared_policy",))) == {"shared": ("low", "high")}


def test_agents_of_a_group_share_in_the_tasks_order_and_others_stand_alone(config: Make) -> None:
    third = ("team=shared_policy", "++task.agents={mid:{}}", "task.agents.mid.template=x", "task.agents.mid.answer=x")
    made = config(third, **{"team.groups": {"pair": ["mid", "low"]}})
    assert agents_by_policy(made) == {"pair": ("low", "mid"), "high": ("high",)}
    assert policy_by_agent(made) == {"low": "pair", "mid": "pair", "high": "high"}


@pytest.mark.parametrize("typed", ["team.groups={pair:[low,high]}", "team.groups.pair=[low,high]"])
def test_groups_are_typed_on_the_command_line(typed: str) -> None:
    assert agents_by_policy(load_config(normalize_arguments(["team=shared_policy", typed]))) == {
        "pair": ("low", "high")
    }


def test_agents_of_a_group_may_be_sampled_differently_but_for_the_temperature(config: Make) -> None:
    own = {"task.agents.high.rollout.max_new_tokens": 4, "task.agents.high.rollout.top_k": 3}
    check_config(config(("team=shared_policy",), **own), 1)


def test_one_critic_for_all_has_steps_of_its_own_where_agents_do_not_agree() -> None:
    typed = ["algorithm=mappo", "critic.shared=true", "critic.ppo_epochs=2", "task.agents.high.algorithm.ppo_epochs=3"]
    check_config(load_config(normalize_arguments(typed)), 1)


def test_a_frozen_agent_may_be_of_another_kind_than_those_who_learn() -> None:
    check_config(
        load_config(
            normalize_arguments([*FROZEN, "task.agents.high.actor=full", "task.agents.high.actor.model=some/model"])
        ),
        1,
    )


def test_groups_belong_to_shared_weights_alone() -> None:
    with pytest.raises(
        ConfigError, match=r"^team\.groups is no key of team=independent; use team=shared_policy or team=shared_base$"
    ):
        load_config(normalize_arguments(["team.groups={pair:[low,high]}"]))


def test_critics_go_by_their_agents_names_or_by_that_of_the_team(config: Make) -> None:
    assert agents_by_critic(config(("critic=value_head",))) == {}
    assert agents_by_critic(config()) == {"low": ("low",), "high": ("high",)}
    assert agents_by_critic(config(("critic=centralized", "team=shared_policy"))) == {"shared": ("low", "high")}
    shared = {"critic.shared": True}
    assert agents_by_critic(config(("critic=centralized",), **shared)) == {"team": ("low", "high")}
    assert agents_by_critic(config(("critic=centralized", "team=shared_policy"), **shared)) == {"team": ("low", "high")}


def test_one_critic_for_all_has_one_set_of_values_and_a_name_of_its_own(config: Make) -> None:
    unequal = config(("critic=centralized",), **{"critic.shared": True, "task.agents.high.critic.learning_rate": 1e-4})
    wanted = (
        r"^task.agents.high.critic.learning_rate=0.0001 differs from low's 0.001, and critic.shared=true has one "
        r"for all; set critic.learning_rate for all of them, or use critic.shared=false$"
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
        ConfigError, match=r"^critic.shared=true makes a critic named team, and an agent or a group has"
    ):
        check_config(named, 1)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            ["critic=adapter"],
            "critic=adapter needs a frozen base, and actor=tiny trains all of low's model; use actor=lora",
        ),
        (["team=shared_base"], "team=shared_base freezes the base of shared, and actor=tiny of low trains all of it"),
        (
            ["actor=tiny_lora", "deepspeed=zero3"],
            "deepspeed.stage=3 spreads trained weights .* actor=tiny_lora are adapters",
        ),
        (["actor=tiny_lora", "actor.target_modules=q_proj"], "is neither all-linear nor a list of names"),
        (
            ["actor=tiny_lora", "actor.model=x"],
            "cannot be set for actor=tiny_lora, which is made locally; use actor=lora",
        ),
        (["actor=lora"], "actor.model=null names no weights for agent low; .* use actor=tiny_lora"),
        (
            ["actor=tiny_lora", "team=shared_base", "task.agents.high.actor.hidden_size=64"],
            "task.agents.high.actor.hidden_size=64 differs from low's 128, and both are in group shared, which has one",
        ),
    ],
)
def test_adapters_and_bases_that_cannot_be_are_refused(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_config(load_config(overrides), 1)


def test_agents_on_one_base_may_differ_in_all_that_is_their_own() -> None:
    own = ["task.agents.high.actor.rank=4", "task.agents.high.actor.learning_rate=0.1", "task.agents.low.critic.rank=2"]
    config = load_config(["actor=tiny_lora", "critic=adapter", "team=shared_base", *own])
    check_config(config, 1)
    assert agents_by_policy(config) == {"low": ("low",), "high": ("high",)}
    assert agents_by_base(config) == {"shared": ("low", "high")}
    assert base_by_policy(config) == {"low": "shared", "high": "shared"}
