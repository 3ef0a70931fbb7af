"""The relay task, and its best score without communication."""

from __future__ import annotations

import itertools

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import RelayConfig
from ippo_cli.tasks.small_tasks import best_parallel_score, relay_examples


def config(alphabet: str, train: int, held_out: int) -> RelayConfig:
    sizes = [f"task.train_size={train}", f"task.eval_size={held_out}"]
    task = load_config(["task=relay", f"task.alphabet={alphabet}", *sizes]).task
    assert isinstance(task, RelayConfig)
    return task


def test_relay_rows_have_correct_answers() -> None:
    train, held_out = relay_examples(config("abc", 6, 3), 0)
    rows = {(row["hidden"], row["own"]): (row["next"], row["later"]) for row in [*train, *held_out]}
    assert rows == {
        ("a", "a"): ("b", "b"), ("a", "b"): ("b", "b"), ("a", "c"): ("b", "c"),
        ("b", "a"): ("c", "c"), ("b", "b"): ("c", "c"), ("b", "c"): ("c", "c"),
        ("c", "a"): ("a", "a"), ("c", "b"): ("a", "b"), ("c", "c"): ("a", "c"),
    }  # fmt: skip


@pytest.mark.parametrize("letters", ["ab", "abc", "abcd"])
def test_best_parallel_score_matches_exhaustive_search(letters: str) -> None:
    asked = config(letters, 2, 2)
    rows = [row for part in relay_examples(config(letters, len(letters) ** 2 - 1, 1), 0) for row in part]
    tried = []
    for answers in itertools.product(letters, repeat=len(letters)):  # every function of the agent's own letter
        policy = dict(zip(letters, answers, strict=True))
        tried.append(sum(policy[row["own"]] == row["later"] for row in rows) / len(rows))
    assert best_parallel_score(asked) == pytest.approx(max(tried))
    assert best_parallel_score(asked) == pytest.approx((len(letters) + 1) / (2 * len(letters)))


def test_examples_are_distinct_and_depend_only_on_seed() -> None:
    asked = config("abcdefgh", 50, 14)
    train, held_out = relay_examples(asked, 3)
    assert len({(row["hidden"], row["own"]) for row in [*train, *held_out]}) == 64
    assert relay_examples(asked, 3) == (train, held_out)
    assert relay_examples(asked, 4) != (train, held_out)
    with pytest.raises(ConfigError, match="more examples than the 64 pairs of letters"):
        relay_examples(config("abcdefgh", 60, 14), 3)
