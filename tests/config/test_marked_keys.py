"""Marks of schema fields: frozen keys of a run, and keys with an effect on evaluations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_type_hints

import pytest

from ippo_cli.config import schema
from ippo_cli.config.constraints import PositiveInt, constraints
from ippo_cli.config.evaluation import evaluation_keys
from ippo_cli.config.marked_keys import is_frozen_key, schema_keys
from ippo_cli.config.marks import InEval, Mark, find_marks


@pytest.mark.parametrize(
    ("key", "frozen"),
    [
        ("seed", True),
        ("task.train", True),
        ("task.columns.question", True),
        ("actor.model", True),
        ("actor.model_args.load_in_4bit", True),
        ("rollout.buffer_size", True),
        ("deepspeed.offload_params", True),
        ("task.agents.low.template", True),
        ("task.agents.low.actor.rank", True),
        ("task.agents.low.actor.learning_rate", False),
        ("task.agents.low.rollout.temperature", False),
        ("actor.learning_rate", False),
        ("rollout.temperature", False),
        ("reward.function", False),
        ("algorithm.gamma", False),
        ("num_iterations", False),
    ],
)
def test_frozen_keys(key: str, frozen: bool) -> None:
    assert is_frozen_key(key) is frozen


def test_evaluation_keys() -> None:
    of_run, of_model = evaluation_keys(of_model=False), evaluation_keys(of_model=True)
    assert of_run[:2] == ["task", "reward"]
    assert {"rollout.temperature", "task.agents.*.rollout.temperature", "reward.url", "actor.dtype"} <= {*of_run}
    assert {*of_model} - {*of_run} >= {"seed", "task.train", "actor.revision", "task.agents.*.actor.kind"}
    assert {"actor.model", "actor.learning_rate", "reward.scale", "algorithm.gamma"}.isdisjoint(of_model)
    assert len(of_model) == len({*of_model})


def test_key_without_mark_is_neither_frozen_nor_in_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class AddedRewardConfig(schema.RewardConfig):
        plain: PositiveInt  # without a mark
        marked: InEval[PositiveInt]  # with a mark

    AddedRewardConfig.__annotations__ |= {"plain": PositiveInt, "marked": InEval[PositiveInt]}
    monkeypatch.setitem(schema.OPTIONS["reward"], "added", AddedRewardConfig)
    assert {key.name for key in schema_keys()} >= {"reward.plain", "reward.marked"}
    assert not is_frozen_key("reward.plain")
    assert "reward.plain" not in evaluation_keys(of_model=True)
    assert "reward.marked" in evaluation_keys(of_model=False)
    assert constraints(AddedRewardConfig)["plain"] == constraints(AddedRewardConfig)["marked"]


def test_keys_of_the_same_name_have_the_same_marks() -> None:
    for group, kinds in schema.OPTIONS.items():
        marks: dict[str, Any] = {}
        for cls in kinds.values():
            for name, hint in get_type_hints(cls, include_extras=True).items():
                assert marks.setdefault(name, find_marks(hint)) == find_marks(hint), f"{group}.{name}"


def test_changeable_keys_are_below_a_frozen_group() -> None:
    names = [key.name for key in schema_keys() if {Mark.changeable, Mark.frozen} <= key.marks]
    assert names
    assert all(name.startswith("task.") for name in names)
