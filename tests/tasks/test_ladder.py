"""The ladder task: an environment with several turns."""

from __future__ import annotations

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import LadderConfig
from ippo_cli.tasks.environment import Action
from ippo_cli.tasks.ladder import Ladder, ladder_examples, make_ladder_factory


@pytest.fixture
def config() -> LadderConfig:
    task = load_config(["task=ladder"]).task
    assert isinstance(task, LadderConfig)
    return task


def test_each_correct_turn_has_its_reward(config: LadderConfig) -> None:
    world = Ladder(config)
    assert world.reset({"start": "c", "stride": 3}, seed=0) == {"climber": "c3"}
    steps = [world.step({"climber": Action(text=text)}) for text in ("f", "x", "d", "gg", "b")]
    assert [step.observations["climber"] for step in steps] == ["f", "a", "d", "g", "b"]
    assert [step.rewards["climber"] for step in steps] == [0.2, 0.0, 0.2, 0.0, 0.2]
    assert [step.terminated for step in steps] == [False, False, False, False, True]
    assert steps[-1].parts == {"rungs": 0.6}


def test_all_turns_correct_have_total_reward_one(config: LadderConfig) -> None:
    world = Ladder(config)
    for example in [row for part in ladder_examples(config, 0) for row in part]:
        world.reset(example, seed=0)
        letters, total = "abcdefgh", 0.0
        rung = letters.index(example["start"])
        for _ in range(config.num_rungs):
            rung = (rung + example["stride"]) % 8
            total += world.step({"climber": Action(text=letters[rung])}).rewards["climber"]
        assert total == pytest.approx(1.0)


def test_train_and_held_out_examples_are_disjoint(config: LadderConfig) -> None:
    train, held_out = ladder_examples(config, 0)
    pairs = [(row["start"], row["stride"]) for row in [*train, *held_out]]
    assert len(set(pairs)) == len(pairs) == 24
    assert ladder_examples(config, 0) == (train, held_out)
    assert ladder_examples(config, 1) != (train, held_out)


@pytest.mark.parametrize(
    ("override", "message"),
    [("task.strides=8", "must be less than the 8 letters"), ("task.alphabet=a", "has fewer than two letters")],
)
def test_degenerate_ladders_are_rejected(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(load_config(["task=ladder", override]), 1)


def test_too_many_examples_and_several_agents_are_rejected(config: LadderConfig) -> None:
    config.train_size = 21
    with pytest.raises(ConfigError, match="more examples than the 24 pairs"):
        ladder_examples(config, 0)
    config.agents["other"] = config.agents["climber"]
    with pytest.raises(ConfigError, match="a ladder has one"):
        make_ladder_factory(config)
