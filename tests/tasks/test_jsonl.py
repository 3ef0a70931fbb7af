"""Rows of files, functions and datasets: reading, columns, map, filter, nulls."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import datasets
import pyarrow.parquet
import pytest
from no_curriculum import NO_CURRICULUM

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.config.schema import JsonlConfig, OverlongPrompts, PromptConfig
from ippo_cli.tasks.jsonl import held_out_rows, jsonl_examples
from ippo_cli.tasks.sources import load_table
from ippo_cli.tasks.task import load_task
from ippo_cli.tasks.templates import render_template

ROWS = [{"prompt": f"{row} + 1 = ", "answer": str(row + 1), "n": row, "tags": ["a", "b"]} for row in range(7)]
AS_THEY_ARE: dict[str, Any] = {"train_size": None, "eval_size": None, "eval_share": None, "weights": None}
AS_THEY_ARE |= {"columns": {}, "map": None, "filter": None, "overlong": OverlongPrompts.error, "streaming": False}


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
        kind="jsonl",
        agents={},
        protocol="parallel",
        num_turns=1,
        primary_metric="sampled/score",
        curriculum=NO_CURRICULUM,
        train=train,
        train_split="train",
        eval=held_out,
        eval_split="test",
        data_config=None,
        chat_template="auto",
        **{**AS_THEY_ARE, **changes},
    )


def rows(found: Sequence[Any]) -> list[dict[str, Any]]:
    return [dict(found[row]) for row in range(len(found))]


def test_json_lines_are_read_in_file_order(file: str) -> None:
    train, held_out = jsonl_examples(config(file, file, train_size=4, eval_size=100), seed=0)
    assert rows(train) == ROWS[:4]
    assert rows(held_out) == ROWS


def test_parquet_is_read(file: str, tmp_path: Path) -> None:
    datasets.Dataset.from_list(ROWS).to_parquet(str(tmp_path / "rows.parquet"))
    _, held_out = jsonl_examples(config(file, str(tmp_path / "rows.parquet"), eval_size=2), seed=0)
    assert rows(held_out) == ROWS[:2]


def test_changed_file_is_read_again(file: str) -> None:
    jsonl_examples(config(file, file), seed=0)
    Path(file).write_text('{"prompt": "another one, and longer than before", "answer": "x"}\n')
    train, _ = jsonl_examples(config(file, file), seed=0)
    assert rows(train) == [{"prompt": "another one, and longer than before", "answer": "x"}]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "the file does not exist"),
        ("", "has no rows"),
        ('{"a": 1}\n{"a": \n', "could be read .line 2 of .* begins an object that does not end"),
    ],
    ids=["missing", "empty", "broken"],
)
def test_file_without_rows_raises_one_error_and_prints_nothing(
    text: str | None, message: str, file: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(PreflightError, match=message) as raised:
        jsonl_examples(config(file, str(path)), seed=0)
    assert str(raised.value).startswith(f"task.eval={path}")
    assert raised.value.exit_code == 3
    assert "".join(capfd.readouterr()) == ""


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_without_template_fields_are_rejected(kind: str, file: str, tmp_path: Path) -> None:
    lacking = [dict(row) for row in ROWS]
    del lacking[5]["answer"]
    path = tmp_path / f"lacking.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in lacking))
    else:
        datasets.Dataset.from_list(lacking).to_parquet(str(path))
    asked = PromptConfig(template="{prompt}", system=None, answer="{answer}")
    result = config(file, str(path))
    result.agents["solo"] = asked  # type: ignore[assignment]
    with pytest.raises(PreflightError, match=r"1 of 7 rows have no 'answer', which task\.agents\.solo\.answer names"):
        jsonl_examples(result, seed=0)
    result.eval_size = 5  # the row is not among the first five
    assert len(jsonl_examples(result, seed=0)[1]) == 5
    result.eval_size, asked.answer = None, None
    assert len(jsonl_examples(result, seed=0)[1]) == 7


def test_name_that_is_not_a_file_is_a_dataset_id(file: str) -> None:
    with pytest.raises(PreflightError, match=r"^task\.train=no/such-dataset: no rows could be read \("):
        jsonl_examples(config("no/such-dataset", file), seed=0)


def test_missing_data_setting_is_rejected(file: str) -> None:
    with pytest.raises(ConfigError, match=r"^task\.eval=null names no data; "):
        jsonl_examples(config(file, None), seed=0)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    for name, part in (("b", ROWS[:3]), ("a", ROWS[3:5]), ("c", ROWS[5:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return tmp_path


def test_pattern_files_are_sorted_and_listed_files_keep_order(parts: Path) -> None:
    listed = [str(parts / f"{name}.jsonl") for name in "bac"]
    by_pattern, as_listed = jsonl_examples(config(str(parts / "*.jsonl"), listed), seed=0)  # type: ignore[arg-type]
    assert rows(by_pattern) == [*ROWS[3:5], *ROWS[:3], *ROWS[5:]]
    assert rows(as_listed) == ROWS
    with pytest.raises(PreflightError, match=r"\*\.csv: no file matches this pattern"):
        jsonl_examples(config(str(parts / "*.csv"), listed), seed=0)  # type: ignore[arg-type]


def test_csv_cells_are_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text('\ufeffprompt,answer\n"a, b",007\nNone,1.50\n', encoding="utf-8")
    (tmp_path / "rows.tsv").write_text("prompt\tanswer\nx\tNA\n")
    train, held_out = jsonl_examples(config(str(tmp_path / "rows.csv"), str(tmp_path / "rows.tsv")), seed=0)
    assert rows(train) == [{"prompt": "a, b", "answer": "007"}, {"prompt": "None", "answer": "1.50"}]
    assert rows(held_out) == [{"prompt": "x", "answer": "NA"}]


def test_empty_csv_cell_is_null(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("prompt,answer\nx,\n")
    result = config(str(tmp_path / "rows.csv"), str(tmp_path / "rows.csv"))
    result.agents["solo"] = PromptConfig(template="{prompt}", system=None, answer="{answer}")  # type: ignore[assignment]
    with pytest.raises(PreflightError, match="1 of 1 rows have no 'answer'"):
        jsonl_examples(result, seed=0)


def test_unknown_file_suffix_is_rejected(file: str, tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("x\n")
    with pytest.raises(PreflightError, match=r"rows\.txt: supported file suffixes are \.jsonl"):
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


def test_function_returns_rows(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MADE)
    name = f"{tmp_path}/mine.py:train"
    train, held_out = jsonl_examples(config(name, name, eval_size=2), seed=0)
    assert rows(train) == [{"prompt": f"{row} + 1 = ", "answer": str(row + 1)} for row in range(5)]
    assert rows(held_out) == rows(train)[:2]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        ("broken", r"the function failed \(.*mine\.py:6: KeyError: 'nothing'\)"),
        ("words", r"the function failed \("),
        ("none", r"has no rows"),
    ],
)
def test_function_without_rows_is_rejected(function: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MADE)
    name = f"{tmp_path}/mine.py:{function}"
    with pytest.raises(PreflightError, match=rf"^task\.train=.*mine\.py:{function}:? ?{words}"):
        jsonl_examples(config(name, name), seed=0)


def test_unknown_function_error_lists_functions(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MADE)
    name = f"{tmp_path}/mine.py:trian"
    with pytest.raises(ConfigError, match=r"^task\.train=.* names no function .*; it has: broken none train words"):
        jsonl_examples(config(name, name), seed=0)


CODE = """
def shout(row):
    if row["n"] == 6:
        return None
    return {**row, "prompt": row["prompt"].upper() + "!"}

def even(row):
    return row["n"] % 2 == 0

def broken(row):
    raise RuntimeError("no")
"""


@pytest.fixture
def code(tmp_path: Path) -> str:
    path = tmp_path / "rows.py"
    path.write_text(CODE)
    return str(path)


def test_missing_column_error_lists_sources_and_remedy(tmp_path: Path) -> None:
    for name, column in (("a", "solution"), ("b", "answer"), ("c", "answers")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": "q", column: "1"}) + "\n")
    a, b, c = (str(tmp_path / f"{name}.jsonl") for name in "abc")
    rule = (
        rf"right=answer: there is no such column in {a}, {c}; columns are: question solution answers; name one column "
    )
    with pytest.raises(PreflightError, match=rule + r"for each kind of source: task.columns.right=\[answer,answers\]$"):
        jsonl_examples(config([a, b, c], b, columns={"right": "answer"}), seed=0)
    with pytest.raises(PreflightError, match=r"columns are: question answers; write task.columns.answer=answers$"):
        jsonl_examples(config(c, c, columns={"answer": "nope"}), seed=0)
    (odd := tmp_path / "odd.csv").write_text("My question, answer \nq,1\n")
    rule = r"""columns are: 'My question' ' answer '; write 'task.columns.answer=" answer "'$"""
    with pytest.raises(PreflightError, match=rule):
        jsonl_examples(config(str(odd), str(odd), columns={"answer": "answer"}), seed=0)


WRITTEN = [
    {"answer": 3, "on": "2024-01-05", "mixed": "1.50", "many": {"a": [1]}, "whole": 10**19, "text": "a"},
    {"answer": 2.5, "on": "2024-01-06", "mixed": 4, "many": {"a": [0.5], "b": "x"}, "whole": 1, "text": "b"},
    {"answer": None, "on": "2024-01-07T10:00:00Z", "mixed": "true", "many": None, "whole": 2, "text": "c"},
]


def test_json_values_keep_their_types(tmp_path: Path) -> None:
    lines, listed, late = (tmp_path / name for name in ("lines.jsonl", "list.json", "late.jsonl"))
    lines.write_text("\n".join(json.dumps(row) for row in WRITTEN) + "\n")
    listed.write_text(json.dumps(WRITTEN))
    for changes in ({}, {"streaming": True, "train_size": 3, "eval_size": 3}):
        kept = [{name: row[name] for name in ("answer", "on", "text")} for row in WRITTEN]
        for file, wanted in ((lines, WRITTEN), (listed, WRITTEN)):
            if changes:  # in-memory columns have one type
                file, wanted = tmp_path / f"kept_{file.name}", kept
                file.write_text(json.dumps(kept) if file.suffix == ".json" else "\n".join(map(json.dumps, kept)))
            train, held_out = jsonl_examples(config(str(file), str(file), **changes), seed=0)
            assert repr(rows(train)) == repr(rows(held_out)) == repr(wanted)
    late.write_text("\n".join(json.dumps({"on": row["on"]}) for row in WRITTEN))
    (tmp_path / "early.jsonl").write_text(json.dumps({"on": "some day"}))
    together = rows(jsonl_examples(config(str(tmp_path / "[el]a*.jsonl"), str(late)), seed=0)[0])
    assert [row["on"] for row in together] == ["some day", *(row["on"] for row in WRITTEN)]


def test_columns_are_renamed_with_paths_and_fallbacks(tmp_path: Path) -> None:
    nested = [{"problem": "a", "meta": {"gold": [1, row]}} for row in range(2)]
    (tmp_path / "nested.jsonl").write_text("".join(json.dumps(row) + "\n" for row in nested))
    columns = {"question": ["question", "problem"], "right": "meta.gold.1"}
    train, _ = jsonl_examples(config(*[str(tmp_path / "nested.jsonl")] * 2, columns=columns), seed=0)
    assert [(row["question"], row["right"]) for row in rows(train)] == [("a", 0), ("a", 1)]
    with pytest.raises(
        PreflightError, match=r"question=text: there is no such column in .*nested.jsonl; columns are: "
    ):
        jsonl_examples(config(*[str(tmp_path / "nested.jsonl")] * 2, columns={"question": "text"}), seed=0)
    with pytest.raises(PreflightError, match=r"task.columns.right=meta.gold.7: a row has no such value \(no '7'"):
        rows(jsonl_examples(config(*[str(tmp_path / "nested.jsonl")] * 2, columns={"right": "meta.gold.7"}), 0)[0])


def test_map_and_filter_apply_and_count_excluded_rows(file: str, code: str) -> None:
    changed = config(file, file, map=f"{code}:shout", filter="n < 2 or n > 4")
    train, held_out = jsonl_examples(changed, seed=0)
    assert [row["n"] for row in rows(train)] == [row["n"] for row in rows(held_out)] == [0, 1, 5]
    assert rows(train)[1]["prompt"] == "1 + 1 = !"
    assert list(train) == rows(train)
    assert train[-1] == rows(train)[2]
    (counts,) = train.counts  # type: ignore[attr-defined]
    assert str(counts) == f"{file}: 7 rows, 1 excluded by task.map, 3 excluded by task.filter: 3 are used"
    train, _ = jsonl_examples(config(file, file, filter=f"{code}:even", train_size=3), seed=0)
    assert [row["n"] for row in rows(train)] == [0, 2, 4]
    for changes, expected in (
        ({"map": f"{code}:broken"}, r"task.map=.*:broken fails on a row \(.*RuntimeError: no"),
        ({"filter": "level == 'easy'"}, r"task.filter=level == 'easy' fails on a row \(.*level"),
        ({"filter": "n <"}, r"task.filter=n < is not a valid Jinja expression"),
        ({"filter": "().__class__.__mro__[1].__subclasses__()"}, "task.filter=.* fails on a row"),
    ):
        with pytest.raises(ConfigError, match=expected):
            jsonl_examples(config(file, file, **changes), seed=0)
    with pytest.raises(
        PreflightError, match=r"has no rows left \(.*: 7 rows, 7 excluded by task.filter: 0 are used\)$"
    ):
        jsonl_examples(config(file, file, filter="n > 100"), seed=0)


def test_field_missing_in_one_source_is_rejected(file: str, tmp_path: Path) -> None:
    (tmp_path / "other.jsonl").write_text('{"prompt": "x"}\n')
    result = config([file, str(tmp_path / "other.jsonl")], file, weights=[1, 1])  # type: ignore[arg-type]
    result.agents["solo"] = PromptConfig(template="{prompt}", system=None, answer="{answer}")  # type: ignore[assignment]
    with pytest.raises(PreflightError, match="1 of 8 rows have no 'answer'"):
        jsonl_examples(result, seed=0)


def test_eval_share_splits_rows_by_seed(file: str) -> None:
    divided = config(file, None, eval_share=0.3)
    train, held_out = jsonl_examples(divided, seed=3)
    assert sorted(row["n"] for row in [*rows(train), *rows(held_out)]) == list(range(7))
    assert len(held_out) == 2
    assert rows(held_out_rows(divided, seed=3)) == rows(held_out)
    assert {tuple(row["n"] for row in held_out_rows(divided, seed)) for seed in range(8)} != {(0, 1)}
    with pytest.raises(PreflightError, match=r"task.eval_share=0.01 of 7 rows leaves one of the two parts empty"):
        jsonl_examples(config(file, None, eval_share=0.01), seed=0)


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
def test_streaming_reads_only_first_rows(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"rows.{suffix}"
    plain = [{"prompt": row["prompt"], "n": row["n"]} for row in ROWS]
    if suffix == "jsonl":
        beyond = json.dumps(plain[5] | {"prompt": "x" * 11_000_000})  # files are read in blocks of 10 MB
        file.write_text("".join(json.dumps(row) + "\n" for row in plain[:5]) + f"{beyond}\nhere it breaks\n")
    else:
        table = datasets.Dataset.from_list(plain)
        (table.to_csv if suffix == "csv" else table.to_parquet)(str(file))
    train, held_out = jsonl_examples(config(str(file), str(file), streaming=True, train_size=4, eval_size=2), seed=0)
    assert [str(row["n"]) for row in rows(train)] == list("0123")
    assert len(held_out) == 2


def test_unchanged_file_is_read_from_the_cache(tmp_path: Path) -> None:
    file = tmp_path / "rows.parquet"
    datasets.Dataset.from_list([{"prompt": "a"}]).to_parquet(str(file))
    before = load_table("task.train", str(file), None, "train").cache_files
    os.utime(file, (1, 1))
    assert load_table("task.train", str(file), None, "train").cache_files == before


def test_streaming_stops_a_generator_function(tmp_path: Path) -> None:
    module = tmp_path / "endless.py"
    module.write_text("import itertools\ndef rows():\n    for n in itertools.count():\n        yield {'n': n}\n")
    source = f"{module}:rows"
    train, held_out = jsonl_examples(config(source, source, streaming=True, train_size=4, eval_size=2), seed=0)
    assert [row["n"] for row in rows(train)] == [0, 1, 2, 3]
    assert len(held_out) == 2


MEMORY = """
import sys, threading, time
from pathlib import Path
from ippo_cli.tasks.sources import load_table
import datasets, pyarrow.json, pyarrow.parquet

def held():
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) / 1024

most = [held()]
before = most[0]
def watch():
    while True:
        most[0] = max(most[0], held())
        time.sleep(0.002)
threading.Thread(target=watch, daemon=True).start()
table = load_table("task.train", sys.argv[1], None, "train")
seen = sum(len(table[row]["prompt"]) for row in range(len(table)))
print(seen / 2**20, most[0] - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_files_are_not_loaded_into_memory(suffix: str, tmp_path: Path) -> None:
    """Anonymous memory of the process, without the file cache, grows by less than half of the text size."""
    file = tmp_path / f"rows.{suffix}"
    words = ["".join(random.Random(row).choices("abcdefgh ", k=20_000)) for row in range(500)]  # incompressible text
    if suffix == "jsonl":
        with file.open("w") as lines:
            lines.writelines(json.dumps({"prompt": text, "answer": str(n)}) + "\n" for n in range(40) for text in words)
    else:
        with pyarrow.parquet.ParquetWriter(file, pyarrow.schema({"prompt": pyarrow.string()})) as writer:
            for _ in range(40):
                writer.write_table(pyarrow.table({"prompt": words}))
    environment = {**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "cache")}
    output = subprocess.run(
        [sys.executable, "-c", MEMORY, str(file)], env=environment, capture_output=True, text=True, check=True
    )
    size, grown = map(float, output.stdout.split())
    assert size > 380
    assert grown < size / 2, f"{grown:.0f} of {size:.0f} MiB"


def test_math_and_preference_tasks_read_rows(tmp_path: Path) -> None:
    solved = [{"problem": "1+1", "solution": "so \\boxed{2}"}, {"problem": "?", "solution": "open"}]
    pairs = [
        {"chosen": f"\n\nHuman: {n}?\n\nAssistant: a", "rejected": f"\n\nHuman: {n}?\n\nAssistant: b"} for n in "xy"
    ]
    for name, lines in (("math", solved), ("preference_prompts", pairs)):
        file = tmp_path / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in lines))
        made = load_config([f"task={name}", f"task.train={file}", f"task.eval={file}", "actor=full", "actor.model=x"])
        assert isinstance(made.task, JsonlConfig)
        task = load_task(made.task, seed=0)
        ((agent, first),) = task.dry_run.first_observations.items()
        assert len(task.train) == {"math": 1, "preference_prompts": 2}[name]
        assert task.train[0].get("answer", "2") == "2"
        assert first.startswith({"math": "1+1\n", "preference_prompts": "\n\nHuman: x?\n\nAssistant:"}[name]), agent


def test_column_missing_in_first_row_is_kept(tmp_path: Path) -> None:
    made = [{"prompt": "1", "answer": "1"}, {"prompt": "2", "answer": "2", "hint": "even"}]
    (tmp_path / "mine.py").write_text(f"def train():\n    return {made}\n")
    train, _ = jsonl_examples(config(f"{tmp_path}/mine.py:train", f"{tmp_path}/mine.py:train"), seed=0)
    assert rows(train) == [made[0] | {"hint": None}, made[1]]
    files = [tmp_path / name for name in ("a.jsonl", "b.jsonl")]
    for path, row in zip(files, made, strict=True):
        path.write_text(json.dumps(row) + "\n")
    pattern = str(tmp_path / "[ab].jsonl")
    streamed, _ = jsonl_examples(config(pattern, pattern, streaming=True, train_size=2, eval_size=2), seed=0)
    assert rows(streamed) == [made[0] | {"hint": None}, made[1]]


def test_weighted_source_without_training_rows_is_rejected(file: str, tmp_path: Path) -> None:
    single = tmp_path / "single.jsonl"
    single.write_text(json.dumps(ROWS[0]) + "\n")
    result = config([file, str(single)], None, weights=[1, 1], eval_share=0.5)  # type: ignore[arg-type]
    drawn = {seed: held_out_rows(result, seed) for seed in range(8)}
    away = {seed for seed, held_out in drawn.items() if getattr(held_out, "sizes", ())[1]}
    assert 0 < len(away) < len(drawn)
    for seed, held_out in drawn.items():
        assert getattr(held_out, "weights", ()) is None  # evaluation ignores weights
        expected = (
            pytest.raises(PreflightError, match="source 2 has a weight, but no rows are left")
            if seed in away
            else nullcontext()
        )
        with expected:
            jsonl_examples(result, seed)


def test_null_fields_may_be_tested_but_not_rendered(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [{"prompt": "a", "context": "c", "answer": "x"}, {"prompt": "b", "context": None, "answer": "y"}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def asked(template: str, **changes: Any) -> list[str]:
        result = config(str(path), str(path), **changes)
        result.agents["solo"] = PromptConfig(template=template, system=None, answer="{answer}")  # type: ignore[assignment]
        return [render_template(template, row, "where") for row in jsonl_examples(result, seed=0)[0]]

    tested = "jinja:{% if context %}{{ context }} {% endif %}{{ prompt }}"
    assert asked(tested) == ["c a", "b"]
    assert asked(tested, columns={"prompt": "prompt"}) == ["c a", "b"]
    assert asked("jinja:{{ context or 'nothing' }}{{ context is none }}{{ context == none }}") == [
        "cFalseFalse",
        "nothingTrueTrue",
    ]
    for writing in (
        "{{ context }}",
        "{{ context | upper }}",
        "{{ 'so ' ~ context }}",
        "{{ agents.solo }}{{ context }}",
    ):
        with pytest.raises(PreflightError, match=r"row 2 of 2: .* writes a field that is null in an example"):
            asked(f"jinja:{writing}")


def test_folder_of_json_lines_keeps_types_unless_declared(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    lines = [{"day": "2024-01-05", "answer": 3}, {"day": "2024-01-06", "answer": 2.5}]
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = config(str(folder), str(folder))
    result.eval_split = "train[1:]"
    train, held_out = jsonl_examples(result, seed=0)
    assert rows(train) == lines
    assert isinstance(train[0]["answer"], int)
    assert rows(held_out) == lines[1:]
    names = "  - name: day\n    dtype: string\n  - name: answer\n    dtype: float64\n"
    (folder / "README.md").write_text(f"---\ndataset_info:\n  features:\n{names}---\n")
    assert isinstance(jsonl_examples(result, seed=0)[0][0]["answer"], float)


def test_parquet_files_keep_their_own_types(tmp_path: Path) -> None:
    for name, answers in (("a", [1.5, 2.0]), ("b", [7, 8])):
        datasets.Dataset.from_dict({"answer": answers}).to_parquet(str(tmp_path / f"{name}.parquet"))
    pattern = str(tmp_path / "*.parquet")
    found = [row["answer"] for row in jsonl_examples(config(pattern, pattern), seed=0)[0]]
    assert [str(answer) for answer in found] == ["1.5", "2.0", "7", "8"]


def test_folder_is_read_like_its_files(
    tmp_path: Path,
) -> None:
    cells = tmp_path / "cells"
    cells.mkdir()
    (cells / "train.csv").write_text("a,b\n007,None\n1.50,x\n")
    lines = tmp_path / "lines"
    lines.mkdir()
    rows = [{"a": "2024-01-05", "b": 3}, {"a": "2024-01-06", "b": 2.5}]
    (lines / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for first in (None, 2):
        table = load_table("task.train", str(cells), None, "train", first=first)
        assert list(table) == [{"a": "007", "b": "None"}, {"a": "1.50", "b": "x"}]
        assert repr(list(load_table("task.train", str(lines), None, "train", first=first))) == repr(rows)
    assert list(load_table("task.train", str(cells), None, "train[1:]")) == [{"a": "1.50", "b": "x"}]
    (cells / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files: train.csv\n  sep: ';'\n---\n"
    )
    assert load_table("task.train", str(cells), None, "train").column_names == ["a,b"], "declared options have priority"


def test_list_in_a_later_row_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"q": "a", "x": "1"}\n{"q": "b", "x": ["1", "2"]}\n')
    result = config(*[str(tmp_path / "x.jsonl")] * 2)
    result.agents["solo"] = PromptConfig(template="{q}", system=None, answer="{x}")  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"solo\.answer='\{x\}' writes the field 'x' as text, but it is a list"):
        jsonl_examples(result, seed=0)


@pytest.mark.parametrize("template", ["{x}", "jinja:{{ x }}"])
def test_nan_of_a_parquet_file_is_rejected(tmp_path: Path, template: str) -> None:
    table = pyarrow.table({"x": [1.5, float("nan"), 2.5]})
    pyarrow.parquet.write_table(table, tmp_path / "rows.parquet")
    asking = config(str(tmp_path / "rows.parquet"), None, eval_share=0.3)
    asking.agents["solo"] = PromptConfig(template=template, system=None, answer="1")  # type: ignore[assignment]
    with pytest.raises(PreflightError, match=r"1 of 3 rows have no 'x'|row 2 of 3"):
        jsonl_examples(asking, seed=0)


def test_all_missing_fields_are_told_at_once(file: str, tmp_path: Path) -> None:
    lacking = tmp_path / "lacking.jsonl"
    lacking.write_text('{"prompt": null, "answer": null}\n{"prompt": "a", "answer": "b"}\n')
    task = config(file, str(lacking))
    task.agents["solo"] = PromptConfig(template="{x}{y}", system=None, answer="{z}")  # type: ignore[assignment]
    with pytest.raises(ConfigError) as refused:
        jsonl_examples(task, seed=0)
    assert "names the fields 'x', 'y', which examples do not have; their fields: prompt answer" in str(refused.value)
    assert "names the field 'z', which examples do not have" in str(refused.value)
    task.agents["solo"] = PromptConfig(template="{prompt}", system=None, answer="{answer}")  # type: ignore[assignment]
    with pytest.raises(PreflightError, match=r"1 of 2 rows have no 'prompt', .* 1 of 2 rows have no 'answer', "):
        jsonl_examples(task, seed=0)
