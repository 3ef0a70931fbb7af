"""Checks of `task.agents.NAME.actor=server`."""

from __future__ import annotations

import pytest

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.marked_keys import is_frozen_key
from ippo_cli.config.schema import Config, ServerActorConfig
from ippo_cli.config.served_agents import local_agents, served_agents, served_model_name

HIGH = "task.agents.high"
SERVED = (
    f"{HIGH}.frozen=true",
    f"{HIGH}.actor=server",
    f"{HIGH}.actor.url=http://node7:8000",
    f"{HIGH}.actor.model=team/big",
)


def load(*overrides: str) -> Config:
    return load_config(normalize_arguments([*SERVED, *overrides]))


def test_partner_has_an_address_and_no_critic() -> None:
    config = load()
    check_config(config, 2)
    actor = config.task.agents["high"].actor
    assert isinstance(actor, ServerActorConfig)
    assert served_agents(config) == {"high": actor}
    assert list(local_agents(config)) == ["low"]
    assert served_model_name(actor) == "team/big"
    assert config.task.agents["high"].critic.kind == "none"
    assert config.task.agents["low"].critic.kind == "separate"


def test_model_has_another_name_at_the_server() -> None:
    actor = load(f"{HIGH}.actor.served_model=big").task.agents["high"].actor
    assert isinstance(actor, ServerActorConfig)
    assert (served_model_name(actor), actor.model) == ("big", "team/big")


@pytest.mark.parametrize(
    "overrides",
    [
        ("critic=centralized",),
        ("critic=value_head",),
        ("team=shared_policy",),
        ("algorithm=grpo",),
        ("actor=tiny_lora", "critic=adapter", "team=shared_base"),
        ("reward.credit_assignment=counterfactual", "rollout.num_generations=2"),
    ],
)
def test_other_agents_are_trained_as_usual(overrides: tuple[str, ...]) -> None:
    check_config(load(*overrides), 1)


def test_resumed_run_may_use_another_server_of_the_same_model() -> None:
    changeable = ("url", "context_limit", "token_env", "start_timeout_s", "request_timeout_s")
    assert not any(is_frozen_key(f"{HIGH}.actor.{key}") for key in changeable)
    assert all(is_frozen_key(f"{HIGH}.actor.{key}") for key in ("kind", "model", "served_model"))


def test_evaluation_needs_no_frozen_mark() -> None:
    check_config(load(f"{HIGH}.frozen=false"), 1, training=False)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"{HIGH}.frozen=false"], r"actor=server keeps its weights, and high would be trained.*set .*\.frozen=true"),
        (
            [f"{HIGH}.actor.url=null"],
            r"high\.actor\.url=null is not the address of high's server; use one such",
        ),
        ([f"{HIGH}.actor.url=node7:8000"], r"url=node7:8000 is not the address"),
        ([f"{HIGH}.actor.model=null"], r"high\.actor\.model=null names no tokenizer for agent high"),
        ([f"{HIGH}.critic=separate"], r"high\.critic\.kind=separate has no effect: .*actor=server is not trained"),
        ([f"{HIGH}.actor.learning_rate=1.0"], r"learning_rate=1.0 is not a key of actor=server"),
        ([f"{HIGH}.algorithm.ppo_epochs=3"], r"ppo_epochs=3 has no effect: .*frozen=true"),
        (["actor=server"], r"actor=server is the server of one frozen agent.*use task\.agents\.NAME\.actor=server"),
        (["+launch.placement={high.actor: 0}"], r"places the actor of high, and it is at a server"),
    ],
)
def test_settings_without_effect_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(load(*overrides), 1)
