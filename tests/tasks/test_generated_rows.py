"""Rows that are made by functions of the project: right, distinct, and held out apart."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from ippo_cli.config.load import load_config
from ippo_cli.config.schema import ConversationConfig
from ippo_cli.tasks import arithmetic, subjects, word_problems
from ippo_cli.tasks.task import load_task, task_environments
from ippo_cli.types import Example


def distinct(rows: list[Example]) -> set[str]:
    return {str(row.get("question") or row.get("subject") or (row["a"], row["b"])) for row in rows}


@pytest.mark.parametrize(
    ("train", "held_out", "sizes"),
    [
        (arithmetic.train, arithmetic.held_out, (1000, 100)),
        (word_problems.train, word_problems.held_out, (2000, 200)),
        (subjects.train, subjects.held_out, (192, 48)),
    ],
)
def test_no_held_out_row_is_trained_on(
    train: Callable[[], list[Example]], held_out: Callable[[], list[Example]], sizes: tuple[int, int]
) -> None:
    trained, tested = distinct(train()), distinct(held_out())
    assert (len(train()), len(held_out())) == sizes
    assert len(trained) == sizes[0]
    assert len(tested) == sizes[1]
    assert not trained & tested
    assert train() == train()


def test_sums_and_differences_are_right_and_small() -> None:
    for row in [*arithmetic.train(), *arithmetic.held_out()]:
        assert 0 <= row["smaller"] <= row["larger"] <= 50
        assert row["sum"] == row["a"] + row["b"] == row["larger"] + row["smaller"]
        assert row["difference"] == abs(row["a"] - row["b"])


def numbers_of(row: Example) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", row["question"])]


def test_word_problems_have_three_numbers_and_an_answer_that_a_child_could_give() -> None:
    for row in [*word_problems.train(), *word_problems.held_out(), *word_problems.other_templates()]:
        numbers = numbers_of(row)
        assert len(numbers) == 3, row
        assert all(2 <= number <= 20 for number in numbers)
        assert row["answer"] >= 1


@pytest.mark.parametrize(
    ("begins", "asks", "steps"),
    [
        ("finds", "How many are left", lambda a, b, c: [a + b, a + b - c]),
        ("boxes of", "How many are left", lambda a, b, c: [a * b, a * b - c]),
        ("bags of", "in all", lambda a, b, c: [b * c, a + b * c]),
        ("on a table", "remain", lambda a, b, c: [a - b, a - b - c]),
        ("on Tuesday", "dollars is that", lambda a, b, c: [a + b, (a + b) * c]),
        ("sells the rest", "dollars is that", lambda a, b, c: [a - b, (a - b) * c]),
        ("needs", "still missing", lambda a, b, c: [a - b, a - b - c]),
        ("pages a day", "pages is that", lambda a, b, c: [a * b, a * b + c]),
    ],
)
def test_steps_and_answers_are_those_of_the_questions(begins: str, asks: str, steps: Callable[..., list[int]]) -> None:
    rows = [row for row in word_problems.train() if begins in row["question"]]
    assert len(rows) == 250
    for row in rows:
        assert asks in row["question"]
        assert row["steps"] == steps(*numbers_of(row))
        assert row["answer"] == row["steps"][-1]


def test_numbers_of_a_held_out_problem_are_new_to_its_template() -> None:
    def shape(row: Example) -> str:
        words = re.sub(r"\d+", "#", row["question"])
        for name in word_problems.NAMES:
            words = words.replace(name, "N")
        for thing in word_problems.THINGS:
            words = words.replace(thing, "T")
        return words

    trained = {(shape(row), *numbers_of(row)) for row in word_problems.train()}
    assert len({shape(row) for row in word_problems.train()}) == len(word_problems.PROBLEMS)
    assert not trained & {(shape(row), *numbers_of(row)) for row in word_problems.held_out()}
    assert not {shape(row) for row in word_problems.other_templates()} & {key[0] for key in trained}


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("arithmetic", {"solo": "What is 30 + 20? Answer with the number only."}),
        ("arithmetic_pair", {"add": "What is 30 + 20?", "subtract": "What is 30 - 20?"}),
        ("word_problems", {"solver": "Q: David has 6 shells, finds 20 more"}),
        ("writing", {"brief": "Write one short sentence about the history of bread.", "long": "the history of bread"}),
    ],
)
def test_a_task_tells_its_agents_of_the_rows(task: str, told: dict[str, str]) -> None:
    config = load_config([f"task={task}", "actor=full", "actor.model=folder"]).task
    assert isinstance(config, ConversationConfig)
    loaded = load_task(config, 0)
    world = task_environments(config)()
    asked = world.reset(loaded.train[0], 0)
    assert {name for name in told} == set(config.agents)
    assert all(words in str(asked) for words in told.values()), asked
