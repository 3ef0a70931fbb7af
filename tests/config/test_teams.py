"""Who shares weights, and under which name they go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ippo_cli.cli.arguments import arguments
from ippo_cli.config.checks import check
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.load import load_config
from ippo_cli.config.teams import holders, members

Make = Callable[..., Any]


def test_independent_agents_have_their_own_weights(config: Make) -> None:
    assert members(config()) == {"low": ("low",), "high": ("high",)}


def test_without_groups_all_agents_share(config: Make) -> None:
    assert members(config(("team=shared_policy",))) == {"shared": ("low", "high")}


def test_agents_of_a_group_share_in_the_tasks_order_and_others_stand_alone(config: Make) -> None:
    third = ("team=shared_policy", "++task.agents={mid:{}}", "task.agents.mid.template=x", "task.agents.mid.answer=x")
    made = config(third, **{"team.groups": {"pair": ["mid", "low"]}})
    assert members(made) == {"pair": ("low", "mid"), "high": ("high",)}
    assert holders(made) == {"low": "pair", "mid": "pair", "high": "high"}


@pytest.mark.parametrize("typed", ["team.groups={pair:[low,high]}", "team.groups.pair=[low,high]"])
def test_groups_are_typed_on_the_command_line(typed: str) -> None:
    assert members(load_config(arguments(["team=shared_policy", typed]))) == {"pair": ("low", "high")}


def test_agents_of_a_group_may_be_sampled_differently_but_for_the_temperature(config: Make) -> None:
    own = {"task.agents.high.rollout.max_new_tokens": 4, "task.agents.high.rollout.top_k": 3}
    check(config(("team=shared_policy",), **own), 1)


def test_groups_belong_to_shared_weights_alone() -> None:
    with pytest.raises(ConfigError, match=r"^team\.groups is no key of team=independent; use team=shared_policy$"):
        load_config(arguments(["team.groups={pair:[low,high]}"]))
