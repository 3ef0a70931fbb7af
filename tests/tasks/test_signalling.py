"""Examples of the signalling game: they do not reveal the meaning of messages."""

from __future__ import annotations

from collections import Counter

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import SignallingConfig
from ippo_cli.tasks.small_tasks import signalling_examples


def config(*overrides: str) -> SignallingConfig:
    task = load_config(["task=signalling", *overrides]).task
    assert isinstance(task, SignallingConfig)
    return task


def test_signals_are_balanced_in_both_parts() -> None:
    for rows in signalling_examples(config(), 0):
        counts = Counter(row["signal"] for row in rows)
        assert set(counts) == set("abcdefgh")
        assert len(set(counts.values())) == 1


def test_messages_and_acts_are_independent_of_signal() -> None:
    train, _ = signalling_examples(config("task.train_size=80000", "task.message_length=2", "task.symbols=01"), 0)
    messages = Counter((row["signal"], row["message"]) for row in train)
    acts = Counter((row["signal"], row["act"]) for row in train)
    read = Counter((row["message"], row["act"]) for row in train)
    for counts, cells in ((messages, 8 * 4), (acts, 8 * 8), (read, 4 * 8)):
        assert len(counts) == cells
        assert all(count == pytest.approx(80000 / cells, rel=0.15) for count in counts.values())


def test_examples_depend_only_on_seed() -> None:
    assert signalling_examples(config(), 1) == signalling_examples(config(), 1)
    assert signalling_examples(config(), 1) != signalling_examples(config(), 2)
    assert signalling_examples(config(), 1)[1] == signalling_examples(config("task.train_size=64"), 1)[1]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.signals=a", "has only one signal"),
        ("task.symbols=0123", "make 4 messages, fewer than the 8 signals"),
        ("task.eval_size=7", "is less than the 8 signals; use at least 8"),
    ],
)
def test_unsolvable_games_are_rejected(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(load_config(["task=signalling", "reward=function", "reward.function=a.py:b", override]), 1)
