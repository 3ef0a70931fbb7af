"""Answers of worked solutions."""

from __future__ import annotations

import pytest

from ippo_cli.tasks.mathematics import last_box, with_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{7}.", "7"),
        ("\\boxed{1} and \\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{\\left\\{1, 2\\right\\}}", "\\left\\{1, 2\\right\\}"),
        ("\\boxed 3", "3"),
        ("\\fbox{x}", "x"),
        ("\\boxed{ }", None),
        ("\\boxed{1", None),
        ("none", None),
        ("", None),
    ],
)
def test_the_answer_is_in_the_last_box(text: str, answer: str | None) -> None:
    assert last_box(text) == answer


def test_a_row_keeps_its_own_answer_and_one_without_any_is_left_out() -> None:
    assert with_answer({"problem": "p", "solution": "\\boxed{1}", "answer": "2"})["answer"] == "2"  # type: ignore[index]
    assert with_answer({"problem": "p", "solution": "\\boxed{1}"}) == {
        "problem": "p",
        "solution": "\\boxed{1}",
        "answer": "1",
    }
    assert with_answer({"problem": "p", "solution": "open"}) is None
