"""Examples of the sorting task."""

from __future__ import annotations

import pytest
from no_curriculum import NO_CURRICULUM

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import SortingConfig
from ippo_cli.tasks.small_tasks import sorting_examples


def config(**changes: object) -> SortingConfig:
    values = {"alphabet": "abcdefghij", "length": 6, "train_size": 500, "eval_size": 100}
    return SortingConfig(
        kind="sorting",
        agents={},
        protocol="parallel",
        num_turns=1,
        primary_metric="sampled/score",
        curriculum=NO_CURRICULUM,
        **{**values, **changes},
    )  # type: ignore[arg-type]


def test_examples_have_letters_and_both_sorted_halves() -> None:
    train, held_out = sorting_examples(config(), seed=0)
    assert (len(train), len(held_out)) == (500, 100)
    for row in [*train, *held_out]:
        assert len(set(row["letters"])) == 6
        assert set(row["letters"]) <= set("abcdefghij")
        assert row["sorted"] == "".join(sorted(row["letters"])) == row["low"] + row["high"]
        assert (len(row["low"]), len(row["high"])) == (3, 3)


def test_odd_length_gives_first_agent_the_extra_letter() -> None:
    train, _ = sorting_examples(config(length=5), seed=0)
    assert {(len(row["low"]), len(row["high"])) for row in train} == {(3, 2)}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_examples_are_distinct_and_held_out_is_disjoint(seed: int) -> None:
    # All 720 arrangements are requested, so any overlap would be found.
    train, held_out = sorting_examples(config(alphabet="abcdef", train_size=620, eval_size=100), seed)
    letters = [row["letters"] for row in [*train, *held_out]]
    assert len(set(letters)) == 720


def test_examples_depend_only_on_seed() -> None:
    assert sorting_examples(config(), seed=1) == sorting_examples(config(), seed=1)
    assert sorting_examples(config(), seed=1) != sorting_examples(config(), seed=2)
    repeated = config(alphabet="jihgfedcba" * 2)  # the same letters
    assert sorting_examples(repeated, seed=1) == sorting_examples(config(), seed=1)


def test_held_out_examples_do_not_depend_on_train_size() -> None:
    assert sorting_examples(config(train_size=50), seed=1)[1] == sorting_examples(config(train_size=500), seed=1)[1]


@pytest.mark.parametrize(
    ("changes", "possible"),
    [({"alphabet": "abc", "length": 3, "train_size": 6, "eval_size": 1}, 6), ({"length": 11}, 0)],
)
def test_too_many_examples_are_rejected(changes: dict[str, object], possible: int) -> None:
    with pytest.raises(ConfigError, match=rf"^task\.train_size=\d+ task\.eval_size=.* the {possible} arr.*; lower"):
        sorting_examples(config(**changes), seed=0)
