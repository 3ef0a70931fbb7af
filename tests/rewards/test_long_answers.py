"""Answers of responses that repeat a text are read in a time that grows with their length alone."""

from __future__ import annotations

import time

import pytest

from ippo_cli.rewards.math_answers import compare_words, find_boxes, remove_thoughts
from ippo_cli.rewards.math_notation import rewrite_dashes, rewrite_notation
from ippo_cli.rewards.math_quantities import find_quantity_after, read_quantity
from ippo_cli.rewards.math_times import compare_times

READERS = {
    "boxes": find_boxes,
    "thoughts": remove_thoughts,
    "words": lambda text: compare_words("Tuesday", text, is_text=False),
    "quantity": read_quantity,
    "quantity after": lambda text: find_quantity_after(text, "1"),
    "times": lambda text: compare_times("12:30", text),
    "notation": rewrite_notation,
    "dashes": rewrite_dashes,
    "ranges": lambda text: compare_times("10-12", text),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "part",
    [
        *(r"\boxed{", "<think>", "m/", "A, ", "1 hour ", "1:", "1-", "2024-01-", "word "),
        *("12 noon ", "12  ", "1\u2013 ", "^\\"),
    ],
)
def test_repeated_text_is_read_in_linear_time(reader: str, part: str) -> None:
    began = time.process_time()
    READERS[reader](f"1 {part * 20_000}")
    assert time.process_time() - began < 2.0
