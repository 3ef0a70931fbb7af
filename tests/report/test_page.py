"""The page as a file: nothing of a run becomes markup, nothing is requested, and its size is limited."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from synthetic import HOSTILE, write_run

from ippo_cli.report.page import build_page
from ippo_cli.report.payload import build_payload, run_names
from ippo_cli.runs.records import RunRecord


class _Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    folder = tmp_path_factory.mktemp("runs") / "a"
    return RunRecord(write_run(folder, iterations=10, files=2, episodes_per_file=4, text=HOSTILE))


def read_index(page: str) -> dict[str, Any]:
    found = re.search(r'id="index">([^<]*)<', page)
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def test_texts_of_a_run_add_no_elements(run: RunRecord) -> None:
    tags = [tag for tag, _ in _Elements(build_page([run], HOSTILE)).found]
    plain = [tag for tag, _ in _Elements(build_page([run], "title")).found]
    assert tags == plain
    assert "img" not in tags


def test_scripts_are_those_of_the_content_policy(run: RunRecord) -> None:
    page = build_page([run], "title")
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)[0]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    programs = re.findall(r'<script(?: type="module")?>(.*?)</script>', page, re.DOTALL)
    assert len(programs) == 3
    for text in programs:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_page_names_no_other_file(run: RunRecord) -> None:
    for _, attributes in _Elements(build_page([run], "title")).found:
        assert "src" not in attributes
        assert attributes.get("href") in (None, "#main", "data:,")


def test_index_has_what_the_page_shows(run: RunRecord) -> None:
    index = read_index(build_page([run], "title"))
    (data,) = index["runs"]
    assert (data["state"], data["agents"], data["name"]) == ("done", ["solver", "checker"], "a")
    assert {warning["rule"]: warning["iteration"] for warning in data["warnings"]} == {"cut_turns": 2, "no_progress": 5}
    assert index["meanings"]["solver/policy/entropy"].startswith("mean entropy per token")
    assert {"key": "algorithm.lam", "values": [0.95], "differs": False} in index["settings"]
    assert index["configurations"][0]["scores"]["sampled/exact"]["last"]["count"] == 1


def test_size_is_limited_and_the_page_says_so(run: RunRecord) -> None:
    whole = build_page([run], "title")
    limited = build_page([run], "title", max_bytes=1_506_000)
    assert read_index(whole)["notes"] == []
    assert "are left out" in read_index(limited)["notes"][0]
    assert len(limited) < len(whole)


def test_runs_with_equal_folder_names_have_longer_names(tmp_path: Path) -> None:
    runs = [RunRecord(tmp_path / part / "run") for part in ("a", "b")]
    assert run_names(runs) == ["a/run", "b/run"]
    assert run_names(runs[:1]) == ["run"]


def test_unfinished_run_without_rows(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"state": "running"}')
    index = read_index(build_page([RunRecord(tmp_path)], "title"))
    assert index["runs"][0]["state"] == "interrupted"
    assert index["files"] == []


def test_a_damaged_row_is_noted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", iterations=20, files=1, episodes_per_file=1)
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (folder / "metrics.jsonl").write_text("".join([*lines[:5], "{oops\n", *lines[6:]]))
    record = RunRecord(folder)
    assert (len(record.metrics), record.damaged_line) == (5, 6)
    assert build_payload([record], "t").notes == [
        "Run a is incomplete: metrics.jsonl is damaged at line 6: later rows are not read."
    ]
    (folder / "metrics.jsonl").write_text("".join(lines[:5]) + '{"iteration": 5, "a')
    assert RunRecord(folder).damaged_line is None
