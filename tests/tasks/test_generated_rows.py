"""Generated rows of bundled tasks: correct, distinct, with disjoint held-out rows."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.config.schema import ConversationConfig
from ippo_cli.tasks import arithmetic, subjects, word_problems
from ippo_cli.tasks.task import load_task, make_task_factory
from ippo_cli.types import Example


def distinct(rows: list[Example]) -> set[str]:
    return {str(row.get("question") or row.get("subject") or (row["a"], row["b"])) for row in rows}


@pytest.mark.parametrize(
    ("train", "held_out", "sizes"),
    [
        (arithmetic.train, arithmetic.held_out, (1000, 100)),
        (word_problems.train, word_problems.held_out, (4000, 200)),
        (subjects.train, subjects.held_out, (192, 48)),
    ],
)
def test_train_and_held_out_rows_are_disjoint(
    train: Callable[[], list[Example]], held_out: Callable[[], list[Example]], sizes: tuple[int, int]
) -> None:
    trained, tested = distinct(train()), distinct(held_out())
    assert (len(train()), len(held_out())) == sizes
    assert len(trained) == sizes[0]
    assert len(tested) == sizes[1]
    assert not trained & tested
    assert train() == train()


def test_arithmetic_rows_are_correct() -> None:
    for row in [*arithmetic.train(), *arithmetic.held_out()]:
        assert 0 <= row["smaller"] <= row["larger"] <= 50
        assert row["sum"] == row["a"] + row["b"] == row["larger"] + row["smaller"]
        assert row["difference"] == abs(row["a"] - row["b"])


WORD_PROBLEMS = (
    word_problems.train,
    word_problems.held_out,
    word_problems.other_templates,
    word_problems.other_words,
)


def numbers_of(row: Example) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", row["question"]))


def words_of(row: Example) -> str:
    """A problem's text with numbers, names and things replaced: equal for problems of one template."""
    words = re.sub(r"\d+", "#", row["question"])
    words = re.sub("|".join(word_problems.NAMES), "N", words)
    return re.sub("|".join(word_problems.THINGS), "T", words)


def test_word_problem_numbers_and_answers_are_in_range() -> None:
    for row in [row for problems in WORD_PROBLEMS for row in problems()]:
        assert numbers_of(row) == tuple(row["numbers"])
        assert len(row["numbers"]) == 3
        assert all(2 <= number <= 20 for number in row["numbers"])
        assert min(row["steps"]) >= 1
        assert row["answer"] == row["steps"][-1]


SIGNS = {
    "finds": "+",
    "is given": "+",
    "wins": "+",
    "picks up": "+",
    "makes": "+",
    "loses": "-",
    "gives away": "-",
    "sells": "-",
    "throws away": "-",
    "lends": "-",
}


def read(row: Example) -> list[int]:
    """The steps, computed from the question text."""
    a, b, c = numbers_of(row)
    result = [sign for _, sign in sorted((row["question"].find(verb), sign) for verb, sign in SIGNS.items()) if _ >= 0]
    if len(result) == 1:
        assert re.search(r"buys \d+ bags of|fills \d+ boxes with", row["question"])
        return [a * b, a * b + c if result == ["+"] else a * b - c]
    first = a + b if result[0] == "+" else a - b
    return [first, first + c if result[1] == "+" else first - c]


@pytest.mark.parametrize("problems", WORD_PROBLEMS[:3])
def test_steps_match_question_text(problems: Callable[[], list[Example]]) -> None:
    rows = problems()
    assert all(row["steps"] == read(row) for row in rows)
    multiplied = sum("bags of" in row["question"] or "boxes with" in row["question"] for row in rows)
    assert multiplied == -(-len(rows) // 3)


def test_steps_of_other_words_match_question_text() -> None:
    for row in word_problems.other_words():
        a, b, c = numbers_of(row)
        if "children" in row["question"]:
            assert row["steps"] == [a * b, a * b + c]
        elif "bus" in row["question"]:
            assert row["steps"] == [a + b, a + b - c]
        else:
            assert "an hour" in row["question"]
            assert row["steps"] == [a * b, a * b - c]


def test_held_out_problems_have_new_numbers_or_templates() -> None:
    trained = word_problems.train()
    numbers, shapes = {numbers_of(row) for row in trained}, {words_of(row) for row in trained}
    assert len(shapes) > 650
    assert {words_of(row) for row in word_problems.held_out()} <= {
        template.text.format("#", "#", "#", name="N", things="T") for template in word_problems.TRAINED_TEMPLATES
    }
    for problems in (word_problems.held_out, word_problems.other_templates):
        assert not numbers & {numbers_of(row) for row in problems()}
    assert not shapes & {words_of(row) for row in [*word_problems.other_templates(), *word_problems.other_words()]}
    result = " ".join(shapes)
    for phrase in [*word_problems.GAINS, *word_problems.LOSSES, *word_problems.AMOUNTS, *word_problems.PRODUCTS]:
        assert phrase.format("#", "#", things="T") in result


@pytest.mark.parametrize(
    ("task", "result"),
    [
        ("arithmetic", {"solo": "What is 30 + 20? Answer with the number only."}),
        ("arithmetic_pair", {"add": "What is 30 + 20?", "subtract": "What is 30 - 20?"}),
        ("word_problems", {"solver": "Q: Clara buys 3 bags of 7 stamps and then lends 11 to a friend."}),
        ("writing", {"brief": "Write one short sentence about the history of bread.", "long": "the history of bread"}),
    ],
)
def test_bundled_tasks_prompt_agents_with_rows(task: str, result: dict[str, str]) -> None:
    config = load_config([f"task={task}", "actor=full", "actor.model=folder"]).task
    assert isinstance(config, ConversationConfig)
    loaded = load_task(config, 0)
    world = make_task_factory(config)()
    asked = world.reset(loaded.train[0], 0)
    assert {name for name in result} == set(config.agents)
    assert all(words in str(asked) for words in result.values()), asked
