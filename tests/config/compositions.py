"""Cached compositions per choice of groups, with single values changed like user overrides."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest

from ippo_cli.compose.load import PER_AGENT, build_config, compose_node, resolve_config
from ippo_cli.config.schema import Config

# Overrides that an option needs; options without an entry need none.
NEEDS: dict[str, tuple[str, ...]] = {
    "task=gsm8k": ("task.train=train.jsonl", "task.eval=test.jsonl"),
    "task=math": ("task.train=train.jsonl", "task.eval=test.jsonl"),
    "task=preference_prompts": (
        "task.train=train.jsonl",
        "task.eval=test.jsonl",
        "reward.function=reward.py:score",
        "actor=full",
        "actor.model=some/model",
    ),
    "task=jsonl": ("task.train=train.jsonl", "task.eval=eval.jsonl", "task.agents.solo.answer='{answer}'"),
    "actor=full": ("actor.model=some/model",),
    "actor=lora": ("actor.model=some/model",),
    "critic=adapter": ("actor=tiny_lora",),
    "team=shared_base": ("actor=tiny_lora",),
    "reward=function": ("reward.function=reward.py:score",),
    "reward=format": ("reward.pattern='.*'",),
    "reward=length": ("reward.high=9",),
    "reward=code": ("reward.sandbox=bwrap",),
    "reward=code_pair": ("reward.sandbox=bwrap",),
    "reward=http": ("reward.url=http://localhost:8000/score",),
    "reward=judge": ("reward.url=http://localhost:8000/v1", "reward.model=large"),
    "reward=model": ("reward.model=some/model",),
    "reward=mix": ("++reward.parts.a={kind: exact_match}",),
    "reward=grid": ("task=probe_grid",),
    "reward=environment": ("task=gymnasium", "task.env_id=FrozenLake-v1"),
    "task=gymnasium": ("task.env_id=FrozenLake-v1",),
    "task=pettingzoo": ("task.env_id=classic/tictactoe_v3",),
    "task=reasoning_gym": ("task.dataset=chain_sum",),
    "task=textarena": ("task.env_id=SimpleNegotiation-v0",),
    "task=openenv": ("task.url=http://127.0.0.1:8000",),
    "task=code_pair": ("actor=full", "actor.model=folder", "reward.sandbox=bwrap"),
    "task=writing": ("actor=full", "actor.model=folder"),  # has no reference answers for a small model
    "task=environment": ("task.environment=my_env.py:make",),
    "critic=none": ("algorithm=reinforce_plus_plus",),
}


@cache
def composed(choices: tuple[str, ...]) -> dict[str, Any]:
    chosen = {choice.split("=")[0] for choice in choices}
    needed = [
        text
        for choice in choices
        if not any(text.split("=")[0] in chosen for text in NEEDS.get(choice, ()))
        for text in NEEDS.get(choice, ())
    ]
    return resolve_config(compose_node([*choices, *needed]))


def set_leaf(plain: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key, also for all agents that have it."""
    group, _, leaf = key.partition(".")
    having = [name for name, agent in plain["task"]["agents"].items() if group in PER_AGENT and leaf in agent[group]]
    targets = [f"task.agents.{name}.{group}.{leaf}" for name in having]
    for target in (key, *targets):
        *path, last = target.split(".")
        node = plain
        for part in path:
            node = node[part]
        assert last in node, f"{target} is not a key of this composition"
        node[last] = value


@pytest.fixture(scope="session")
def plain() -> Callable[..., dict[str, Any]]:
    """Resolved plain values of a choice of groups, with changed values."""

    def make(choices: Sequence[str] = (), **changes: Any) -> dict[str, Any]:
        values = copy.deepcopy(composed(tuple(choices)))
        for key, value in changes.items():
            set_leaf(values, key, value)
        return values

    return make


@pytest.fixture(scope="session")
def config(plain: Callable[..., dict[str, Any]]) -> Callable[..., Config]:
    """The same as typed configuration."""

    def make(choices: Sequence[str] = (), **changes: Any) -> Config:
        return build_config(plain(choices, **changes))

    return make
