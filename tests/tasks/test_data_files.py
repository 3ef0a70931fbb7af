"""Local data files: names with glob characters, changed contents, and unreadable files."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import datasets
import pytest

from ippo_cli.config.errors import PreflightError
from ippo_cli.tasks.sources import load_table


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def read(source: Path | str, *, first: int | None = None) -> list[dict[str, Any]]:
    return [dict(row) for row in load_table("task.train", str(source), None, "train", first=first)]


def write(file: Path, rows: list[dict[str, str]]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        datasets.Dataset.from_list(rows).to_parquet(str(file))
    elif file.suffix == ".csv":
        file.write_text("q\n" + "".join(f"{row['q']}\n" for row in rows))
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("first", [None, 5], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("name", "decoy"), [("train[1]", "train1"), ("what?", "whatx"), ("a*b", "aab"), ("{a}", "a"), ("[b]/x", "b/x")]
)
def test_names_with_glob_characters(suffix: str, first: int | None, name: str, decoy: str, tmp_path: Path) -> None:
    write(tmp_path / f"{name}.{suffix}", [{"q": "wanted"}])
    write(tmp_path / f"{decoy}.{suffix}", [{"q": "decoy"}, {"q": "decoy"}])
    assert read(tmp_path / f"{name}.{suffix}", first=first) == [{"q": "wanted"}]


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("first", [None, 5], ids=["whole", "streamed"])
def test_folder_with_glob_characters(suffix: str, first: int | None, tmp_path: Path) -> None:
    write(tmp_path / "data[1]" / f"train[2].{suffix}", [{"q": "wanted"}])
    write(tmp_path / "data1" / f"train.{suffix}", [{"q": "decoy"}])
    assert read(tmp_path / "data[1]", first=first) == [{"q": "wanted"}]
    assert read(tmp_path / "data[1]" / f"*.{suffix}", first=first) == [{"q": "wanted"}]


@pytest.mark.parametrize("name", ["a::b.jsonl", "a::b.csv", "$HOME.jsonl", "a#%20 b.csv", "http:x.jsonl"])
def test_names_that_look_like_addresses(name: str, tmp_path: Path) -> None:
    write(tmp_path / name, [{"q": "wanted"}])
    assert read(tmp_path / name) == [{"q": "wanted"}]


@pytest.mark.parametrize("name", ["x.jsonl", "x.csv", "x.csv.gz", "x.jsonl.gz", "x.parquet", "x/train.jsonl"])
def test_replaced_file_of_equal_size_and_time(name: str, tmp_path: Path) -> None:
    place, found = tmp_path / name, []
    for text in ("one", "two"):
        write(place.with_suffix("") if place.suffix == ".gz" else place, [{"q": text}])
        if place.suffix == ".gz":
            place.write_bytes(gzip.compress(place.with_suffix("").read_bytes()))
        os.utime(place, (1_000_000_000, 1_000_000_000))
        found += read(place if "/" not in name else place.parent)
    assert found == [{"q": "one"}, {"q": "two"}]


BIG = 12345678901234567890123


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('\n\n{"q": 1}\n\n  \n{"q": 2}\n\n', [{"q": 1}, {"q": 2}]),
        ('\n [\n{"q": 1},\n{"q": 2}]\n', [{"q": 1}, {"q": 2}]),
        ('{\n "q": 1\n}\n{\n "q": {"z":\n [2]}\n}\n', [{"q": 1}, {"q": {"z": [2]}}]),
        ('{"q": 1}{"q": 2}\n{"q": 3}\n', [{"q": 1}, {"q": 2}, {"q": 3}]),
        (f'{{"q": 3}}\n{{"q": "x"}}\n{{"q": {BIG}}}\n', [{"q": 3}, {"q": "x"}, {"q": BIG}]),
        (f'{{"q": [1, "a", -{BIG}]}}\n', [{"q": [1, "a", -BIG]}]),
        ('{"q": {"a": 1}}\n{"q": "s"}\n{"q": [1]}\n', [{"q": {"a": 1}}, {"q": "s"}, {"q": [1]}]),
        ('"a"\n"b"\n', [{"text": "a"}, {"text": "b"}]),
        ('{"q": [{"role": "user"}, {"role": "user"}]}', [{"q": [{"role": "user"}, {"role": "user"}]}]),
    ],
)
@pytest.mark.parametrize("first", [None, 9], ids=["whole", "streamed"])
def test_json_is_read(text: str, rows: list[dict[str, Any]], first: int | None, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    assert repr(read(tmp_path / "x.jsonl", first=first)) == repr(rows)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('{"q": 1},\n{"q": 2},\n', r"line 1 of .* has a comma after the object"),
        ('{"q": 1}\n{"q": 2,}\n', r"line 2 of .* has a comma before '}'; delete it"),
        ('[{"q": 1},\n{"q": 2},\n]', r"line 3 of .* has a comma before '\]'; delete it"),
        ('[{"q": 1}\n{"q": 2}]', r"line 2 of .* has no comma before character 1"),
        ('{"q": 1}\n\n{"q": \n{"q": 2}\n', r"line 3 of .* begins an object that does not end"),
        ('{"q": 1}\n{"q": "b', r"line 2 of .* ends within an object"),
        ("{'q': 1}\n", r"line 1 of .* has single quotes"),
        ('{"q": None}\n', r"line 1 of .* has a Python literal"),
        ('{"q": 1}\n// more\n{"q": 2}\n', r"line 2 of .* has a comment"),
        ('{"q": 1, "q": 2}\n', r"line 1 of .*: an object has the key 'q' twice"),
        ('{"q": 1}\nnull\n', r"line 2 of .* is null, but a row must be an object"),
        ('{"q": 1}\n[1, 2]\n', r"line 2 of .* is \[1, 2\], but a row must be an object"),
        ("[1, 2]", r"item 1 of .* is 1, but a row must be an object"),
        ('{"q": "\\ud800"}\n', r"line 1 of .* has an unpaired surrogate"),
        ('{"data": [{"q": 1}, {"q": 2}]}', r"is one object, and its 'data' is a list of 2 objects"),
        ('{"q": ["a", "b"], "x": ["1", "2"]}', r"is one object of columns \(q x\), not of rows"),
        ('{"q": {"0": "a", "1": "b"}, "x": {"0": 1, "1": 2}}', r"is one object of columns \(q x\), not of rows"),
    ],
)
def test_json_error_names_line_and_rule(text: str, rule: str, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(PreflightError, match=rf"^task\.train=.*x\.jsonl: no rows could be read \(.*{rule}"):
        read(tmp_path / "x.jsonl")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("q,x\na,1\nb,2,9\n", r"line 3 of .* has 3 cells, but the header has 2 columns"),
        ("q,x\na,1,9\nb,2,9\n", r"line 2 of .* has 3 cells, but the header has 2 columns"),
        ("q,q\n1,2\n", r"has two columns named 'q'"),
        ('q,x\na,1\n"b,1\nc,2\n', r"line 3 of .* has an unclosed quote"),
    ],
)
def test_csv_error_names_line_and_rule(text: str, rule: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(PreflightError, match=rule):
        read(tmp_path / "x.csv")


def test_csv_is_read(tmp_path: Path) -> None:
    long = "y" * 200_000
    (tmp_path / "x.csv").write_text(f'q,x\n\n"a\nb",1\n   \nc\n{long},2\n')
    assert read(tmp_path / "x.csv") == [{"q": "a\nb", "x": "1"}, {"q": "c", "x": None}, {"q": long, "x": "2"}]


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
@pytest.mark.parametrize("first", [None, 5], ids=["whole", "streamed"])
def test_latin_1_file_error_names_position(suffix: str, first: int | None, tmp_path: Path) -> None:
    text = '{"q": "a"}\n{"q": "é"}\n' if suffix == "jsonl" else "q\na\nxxxxxxé\n"
    line, character = (2, 8) if suffix == "jsonl" else (3, 7)
    (tmp_path / f"x.{suffix}").write_text(text, encoding="latin-1")
    rule = rf"x\.{suffix}: byte 0xe9 at character {character} of line {line} is not UTF-8; save it as UTF-8"
    with pytest.raises(PreflightError, match=rule):
        read(tmp_path / f"x.{suffix}", first=first)


def test_file_that_is_not_parquet(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("hello")
    with pytest.raises(PreflightError, match=r"x\.parquet is not a complete Parquet file"):
        read(tmp_path / "x.parquet")


def test_messages_say_what_would_work(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "two.jsonl").write_text('{"b": {"c": 1}}\n')
    (tmp_path / "empty.jsonl").touch()
    for source, remedy in (
        (tmp_path, f"must be rows with equal columns: name some, such as task.train='{tmp_path}/*.jsonl'"),
        (tmp_path / "empty.jsonl", "use a file with one row per example"),
        (tmp_path / "none*.jsonl", "check it in the folder"),
        (tmp_path / "none.jsonl", f"the file does not exist in {tmp_path}"),
    ):
        with pytest.raises(PreflightError) as raised:
            read(source)
        assert remedy in str(raised.value)
