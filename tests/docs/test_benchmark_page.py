"""The tables of the benchmark's page are those of its tasks and of the recorded results."""

from __future__ import annotations

from pathlib import Path

from ippo_cli.benchmark.commands import RESULT_BLOCK, TASK_BLOCK
from ippo_cli.benchmark.table import format_markdown, format_results, list_task_rows, read_results

DOCS = Path(__file__).parents[2] / "docs"


def test_tables_are_up_to_date() -> None:
    page = (DOCS / "benchmark.md").read_text()
    results = read_results([DOCS / "data" / "benchmark"])
    for name, text, command in (
        (TASK_BLOCK, format_markdown(list_task_rows()), "ippo-bench list page=docs/benchmark.md"),
        (
            RESULT_BLOCK,
            format_results(results, is_page=True),
            "ippo-bench table docs/data/benchmark page=docs/benchmark.md",
        ),
    ):
        assert f"<!-- {name} -->\n{text}\n<!-- /{name} -->" in page, command
