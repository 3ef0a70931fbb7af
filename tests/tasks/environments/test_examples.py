"""Examples of environments: seeds."""

from __future__ import annotations

import time

import making
import pytest

from ippo_cli.config.schema import GymnasiumConfig
from ippo_cli.tasks.environments.examples import seed_examples


def config(train: int, held_out: int) -> GymnasiumConfig:
    made = making.gymnasium("FrozenLake-v1")
    made.train_size, made.eval_size = train, held_out
    return made


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1])
def test_training_and_held_out_seeds_are_disjoint(seed: int) -> None:
    train, held_out = seed_examples(config(500, 20), seed)
    assert (len(train), len(held_out)) == (500, 20)
    seeds = [row["seed"] for rows in (train, held_out) for row in rows]
    indexes = [row["index"] for rows in (train, held_out) for row in rows]
    assert len(set(seeds)) == len(set(indexes)) == 520
    assert 0 <= min(seeds) <= max(seeds) < 2**32
    assert {row["dataset_seed"] for row in train} == {row["dataset_seed"] for row in held_out}


def test_held_out_rows_do_not_depend_on_train_size() -> None:
    assert list(seed_examples(config(10, 5), 3)[1]) == list(seed_examples(config(10_000, 5), 3)[1])


def test_run_seeds_have_different_rows() -> None:
    one, other = (seed_examples(config(1000, 50), seed)[0] for seed in (0, 1))
    assert not {row["seed"] for row in one} & {row["seed"] for row in other}


def test_rows_are_created_on_access() -> None:
    begun = time.perf_counter()
    train, _ = seed_examples(config(2**30, 20), 0)
    assert train[2**30 - 1]["index"] == 2**30 + 19
    assert time.perf_counter() - begun < 0.1


def test_rows_support_slices_and_negative_indices() -> None:
    train, _ = seed_examples(config(100, 20), 0)
    assert list(train[10:13]) == [train[10], train[11], train[12]]
    assert train[-1] == train[99]
    with pytest.raises(IndexError):
        train[100]
