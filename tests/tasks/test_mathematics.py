"""Extraction of answers from worked solutions."""

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
def test_last_box_finds_the_answer(text: str, answer: str | None) -> None:
    assert last_box(text) == answer


def test_with_answer_keeps_own_answer_and_excludes_rows_without() -> None:
    assert with_answer({"problem": "p", "solution": "\\boxed{1}", "answer": "2"})["answer"] == "2"  # type: ignore[index]
    assert with_answer({"problem": "p", "solution": "\\boxed{1}"}) == {
        "problem": "p",
        "solution": "\\boxed{1}",
        "answer": "1",
    }
    assert with_answer({"problem": "p", "solution": "open"}) is None
