"""Rows of files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest

from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.config.schema import JsonlConfig, PromptConfig, TaskKind
from ippo_cli.tasks.jsonl import jsonl_examples

ROWS = [{"prompt": f"{row} + 1 = ", "answer": str(row + 1), "n": row, "tags": ["a", "b"]} for row in range(7)]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return str(path)


def config(train: str | None, held_out: str | None, **changes: Any) -> JsonlConfig:
    return JsonlConfig(
        kind=TaskKind.jsonl,
        agents={},
        protocol="parallel",
        num_turns=1,
        primary_metric="sampled/score",
        train=train,
        train_split="train",
        eval=held_out,
        eval_split="test",
        data_config=None,
        chat_template="auto",
        **{"train_size": None, "eval_size": None, **changes},
    )


def rows(found: Sequence[Any]) -> list[dict[str, Any]]:
    return [dict(found[row]) for row in range(len(found))]


def test_json_lines_are_read_in_the_files_order(file: str) -> None:
    train, held_out = jsonl_examples(config(file, file, train_size=4, eval_size=100), seed=0)
    assert rows(train) == ROWS[:4]
    assert rows(held_out) == ROWS


def test_parquet_is_read_as_well(file: str, tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).to_parquet(str(tmp_path / "rows.parquet"))
    _, held_out = jsonl_examples(config(file, str(tmp_path / "rows.parquet"), eval_size=2), seed=0)
    assert rows(held_out) == ROWS[:2]


def test_a_file_that_changed_is_read_again(file: str) -> None:
    jsonl_examples(config(file, file), seed=0)
    Path(file).write_text('{"prompt": "another one, and longer than before", "answer": "x"}\n')
    train, _ = jsonl_examples(config(file, file), seed=0)
    assert rows(train) == [{"prompt": "another one, and longer than before", "answer": "x"}]


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "there is no such file"), ("", "has no rows"), ('{"a": 1}\n{"a": \n', "no rows could be read .*row 1")],
    ids=["missing", "empty", "broken"],
)
def test_a_file_without_rows_is_told_by_its_key(text: str | None, said: str, file: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(PreflightError, match=said) as raised:
        jsonl_examples(config(file, str(path)), seed=0)
    assert str(raised.value).startswith(f"task.eval={path}")
    assert raised.value.exit_code == 3


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_that_lack_a_field_which_an_agent_is_asked_with_are_told_before_training(
    kind: str, file: str, tmp_path: Path
) -> None:
    lacking = [dict(row) for row in ROWS]
    del lacking[5]["answer"]
    path = tmp_path / f"lacking.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in lacking))
    else:
        datasets.Dataset.from_list(lacking).to_parquet(str(path))
    asked = PromptConfig(template="{prompt}", system=None, answer="{answer}")
    told = config(file, str(path))
    told.agents["solo"] = asked  # type: ignore[assignment]
    with pytest.raises(PreflightError, match=r"1 of 7 rows have no 'answer', which task\.agents\.solo\.answer names"):
        jsonl_examples(told, seed=0)
    told.eval_size = 5  # the row is not among those in use
    assert len(jsonl_examples(told, seed=0)[1]) == 5
    told.eval_size, asked.answer = None, None
    assert len(jsonl_examples(told, seed=0)[1]) == 7


def test_a_name_that_is_no_file_is_looked_up_as_a_dataset(file: str) -> None:
    with pytest.raises(PreflightError, match=r"^task\.train=no/such-dataset: no rows could be read \("):
        jsonl_examples(config("no/such-dataset", file), seed=0)


def test_data_must_be_named(file: str) -> None:
    with pytest.raises(ConfigError, match=r"^task\.eval=null names no data; "):
        jsonl_examples(config(file, None), seed=0)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    for name, part in (("b", ROWS[:3]), ("a", ROWS[3:5]), ("c", ROWS[5:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return tmp_path


def test_files_of_a_pattern_come_in_the_order_of_their_names_and_listed_ones_as_listed(parts: Path) -> None:
    listed = [str(parts / f"{name}.jsonl") for name in "bac"]
    by_pattern, as_listed = jsonl_examples(config(str(parts / "*.jsonl"), listed), seed=0)  # type: ignore[arg-type]
    assert rows(by_pattern) == [*ROWS[3:5], *ROWS[:3], *ROWS[5:]]
    assert rows(as_listed) == ROWS
    with pytest.raises(PreflightError, match=r"\*\.csv: no file has such a name"):
        jsonl_examples(config(str(parts / "*.csv"), listed), seed=0)  # type: ignore[arg-type]


def test_cells_of_a_table_are_the_text_that_stands_in_them(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('\ufeffprompt,answer\n"a, b",007\nNone,1.50\n', encoding="utf-8")
    (tmp_path / "rows.tsv").write_text("prompt\tanswer\nx\tNA\n")
    train, held_out = jsonl_examples(config(str(tmp_path / "rows.csv"), str(tmp_path / "rows.tsv")), seed=0)
    assert rows(train) == [{"prompt": "a, b", "answer": "007"}, {"prompt": "None", "answer": "1.50"}]
    assert rows(held_out) == [{"prompt": "x", "answer": "NA"}]


def test_an_empty_cell_is_missing(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("prompt,answer\nx,\n")
    told = config(str(tmp_path / "rows.csv"), str(tmp_path / "rows.csv"))
    told.agents["solo"] = PromptConfig(template="{prompt}", system=None, answer="{answer}")  # type: ignore[assignment]
    with pytest.raises(PreflightError, match="1 of 1 rows have no 'answer'"):
        jsonl_examples(told, seed=0)


def test_files_that_no_reader_knows_are_told(file: str, tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("x\n")
    with pytest.raises(PreflightError, match=r"rows\.txt: files that can be read end in \.jsonl"):
        jsonl_examples(config(file, str(tmp_path / "rows.txt")), seed=0)


MADE = """
def train():
    return ({"prompt": f"{row} + 1 = ", "answer": str(row + 1)} for row in range(5))

def broken():
    raise KeyError("nothing")

def words():
    return ["a", "b"]

def none():
    return []
"""


def test_a_function_makes_rows(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MADE)
    name = f"{tmp_path}/mine.py:train"
    train, held_out = jsonl_examples(config(name, name, eval_size=2), seed=0)
    assert rows(train) == [{"prompt": f"{row} + 1 = ", "answer": str(row + 1)} for row in range(5)]
    assert rows(held_out) == rows(train)[:2]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("broken", r"no rows could be made \(.*mine\.py:6: KeyError: 'nothing'\)"),
        ("words", r"no rows could be made \("),
        ("none", r"has no rows"),
    ],
)
def test_a_function_that_makes_no_rows_is_told(function: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MADE)
    name = f"{tmp_path}/mine.py:{function}"
    with pytest.raises(PreflightError, match=rf"^task\.train=.*mine\.py:{function}:? ?{words}"):
        jsonl_examples(config(name, name), seed=0)


def test_a_function_that_is_not_there_is_told_with_those_that_are(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MADE)
    name = f"{tmp_path}/mine.py:trian"
    with pytest.raises(ConfigError, match=r"^task\.train=.* names no function .*; it has: broken none train words"):
        jsonl_examples(config(name, name), seed=0)
