"""Other projects' names lead to keys that exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from ippo_cli.config.aliases import ALIASES, EARLIER, RUNS, ours
from ippo_cli.config.checks import check
from ippo_cli.config.load import config_dir, leaves, load_config

Make = Callable[..., Any]
TABLES = {"an earlier version": EARLIER, **ALIASES}
CASES = [(project, theirs, target) for project, names in TABLES.items() for theirs, target in names.items()]


@pytest.fixture(scope="module")
def keys(plain: Make) -> set[str]:
    """Every dotted key that some choice of groups has."""
    choices = [
        (),
        ("task=jsonl", "actor=full", "reward=function"),
        ("critic=value_head",),
        ("actor=tiny_lora", "critic=adapter", "team=shared_base"),
        ("task=gymnasium",),
        ("task=environment",),
        ("tracker=wandb",),
        ("tracker=mlflow",),
    ]
    return {name for choice in choices for name, _ in leaves(plain(choice))}


@pytest.mark.parametrize(("project", "theirs", "target"), CASES, ids=lambda value: re.sub(r"\W+", "-", value))
def test_every_key_that_an_alias_names_exists(project: str, theirs: str, target: str, keys: set[str]) -> None:
    words = re.sub(r"\([^)]*\)", "", target)
    for word in re.findall(r"(?<![\w./<>=])[a-z_]+(?:\.(?:[a-z_0-9]+|<name>))+", words):
        assert not word.endswith(".py")
        assert word in keys or word.replace("<name>", "solo") in keys or word == "task.agents", word
    for group, option in re.findall(r"(?<![\w.])([a-z_]+)=([a-z_0-9]+)", words):
        assert (config_dir() / group / f"{option}.yaml").is_file(), (group, option)
    plain_word = re.fullmatch(r"[a-z_]+", target)
    assert plain_word is None or target in keys


@pytest.mark.parametrize(("project", "theirs", "target"), CASES, ids=lambda value: re.sub(r"\W+", "-", value))
def test_an_alias_is_found_under_whatever_stands_before_it(project: str, theirs: str, target: str) -> None:
    for key in (theirs, f"actor_rollout_ref.actor.{theirs}", theirs.upper()):
        found = ours(key)
        assert found is not None
        assert found[1] in {names[theirs] for names in TABLES.values() if theirs in names}


@pytest.mark.parametrize("command", [command for runs in RUNS.values() for _, command in runs])
def test_every_command_that_users_of_a_project_are_given_passes_the_checks(command: str) -> None:
    program, *overrides = command.split()
    assert program == "ippo-train"
    check(load_config(overrides), 1)


def test_every_project_has_keys_and_commands() -> None:
    assert ALIASES.keys() == RUNS.keys()


def test_the_longer_name_decides() -> None:
    assert ours("algorithm.kl_ctrl.target_kl") == ("verl", "algorithm.kl.reward.target")
    assert ours("actor_rollout_ref.rollout.n") == ("verl", "rollout.num_generations")


def test_a_name_that_nobody_uses_is_not_found() -> None:
    assert ours("no.such.key") is None
    assert ours("n") is None


def test_names_are_written_as_they_are_looked_up() -> None:
    assert all(theirs == theirs.lower() for _, theirs, _ in CASES)
    assert all(theirs.count(".") <= 2 for _, theirs, _ in CASES)


def test_the_longer_name_is_the_more_certain_one() -> None:
    for key, target in {
        "data.train_batch_size": "rollout.buffer_size",
        "train_batch_size": "algorithm.mini_batch_size",
        "actor_rollout_ref.model.path": "actor=full actor.model",
        "actor_rollout_ref.actor.optim.lr": "actor.learning_rate",
        "critic.optim.lr": "critic.learning_rate",
        "critic.model.path": "critic.model",
        "data.train_files": "task.train",
        "model_name_or_path": "actor=full actor.model",
    }.items():
        found = ours(key)
        assert found is not None
        assert found[1].startswith(target)
