"""Small written tasks of `forecast_runs.py`: rows with a prompt and its answer, for `task=jsonl`."""

from __future__ import annotations

import random
from collections.abc import Callable

LETTERS = "abcdefgh"
TRAIN_ROWS, EVAL_ROWS = 256, 64
Row = dict[str, str]


def _reverse(source: random.Random) -> Row:
    letters = "".join(source.choices(LETTERS, k=3))
    return {"prompt": f"{letters}=", "answer": letters[::-1]}


def _shift(source: random.Random) -> Row:
    letters = "".join(source.choices(LETTERS, k=3))
    return {"prompt": f"{letters}+", "answer": "".join(chr(ord(letter) + 1) for letter in letters)}


def _compare(source: random.Random) -> Row:
    one, other = source.randrange(10, 100), source.randrange(10, 100)
    return {"prompt": f"{one}>{other}=", "answer": str(max(one, other))}


def _count(source: random.Random) -> Row:
    letters = "".join(source.choices("abc", k=6))
    return {"prompt": f"{letters}#", "answer": str(letters.count("a"))}


def _rows(make: Callable[[random.Random], Row]) -> list[Row]:
    """Distinct rows; the first `TRAIN_ROWS` are for training."""
    source = random.Random(make.__name__)
    found: dict[str, Row] = {}
    while len(found) < TRAIN_ROWS + EVAL_ROWS:
        row = make(source)
        found.setdefault(row["prompt"], row)
    return list(found.values())


def reverse_train() -> list[Row]:
    return _rows(_reverse)[:TRAIN_ROWS]


def reverse_eval() -> list[Row]:
    return _rows(_reverse)[TRAIN_ROWS:]


def shift_train() -> list[Row]:
    return _rows(_shift)[:TRAIN_ROWS]


def shift_eval() -> list[Row]:
    return _rows(_shift)[TRAIN_ROWS:]


def compare_train() -> list[Row]:
    return _rows(_compare)[:TRAIN_ROWS]


def compare_eval() -> list[Row]:
    return _rows(_compare)[TRAIN_ROWS:]


def count_train() -> list[Row]:
    return _rows(_count)[:TRAIN_ROWS]


def count_eval() -> list[Row]:
    return _rows(_count)[TRAIN_ROWS:]
