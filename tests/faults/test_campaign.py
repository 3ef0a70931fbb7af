"""Rows that a campaign writes into its page, and selection of cases."""

from __future__ import annotations

from pathlib import Path

from book import Book
from campaign import MARKERS, join_unique, list_finished, write_report

from ippo_cli.config.errors import ConfigError

ROWS = ["| flips | c1 | 1 seen | 0.0 | old |", "| hangs | c1 | 3 of 23 | 2.6 | old |", "| zero | c0 | 2 | 1 | old |"]


def write_rows(folder: Path, lines: list[str], *, beside: bool) -> list[str]:
    page = folder / "page.md"
    page.write_text("\n".join(["before", MARKERS[0], "| part | x |", "|---|---|", *ROWS, MARKERS[1], "after\n"]))
    write_report(lines, page, beside=beside)
    before, _, _, _, *found, _, after = page.read_text().splitlines()
    assert (before, after) == ("before", "after")
    return found


def test_skipped_parts_keep_their_rows(tmp_path: Path) -> None:
    new = ["| hangs | c2 | 23 of 23 | 9.0 | new |", "| soak | c2 | 1 | 1.0 | new |"]
    assert write_rows(tmp_path, new, beside=False) == [ROWS[0], new[0], ROWS[2], new[1]]


def test_selected_cases_keep_rows_of_other_commits(tmp_path: Path) -> None:
    new = ["| hangs | c2 | 4 of 23 | 9.0 | new |", "| zero | c0; c2 | 3 | 1 | new |"]
    assert write_rows(tmp_path, new, beside=True) == [ROWS[0], ROWS[1], new[0], new[1]]


def test_only_selected_cases_run(tmp_path: Path) -> None:
    book = Book(tmp_path, deadline=float("inf"), only="^zero3|_on_2")
    for case in ("zero3_from_1", "0_on_2", "zero1_from_1"):
        book.run_case(case, lambda folder: {"runs": 1})
    assert list(book.cases) == ["zero3_from_1", "0_on_2"]
    assert list_finished(book, 3) == " (zero3 from 1, 0 on 2)"
    assert list_finished(book, 2) == ""


def test_failing_case_does_not_stop_the_campaign(tmp_path: Path) -> None:
    def fail(folder: Path) -> dict[str, object]:
        raise ConfigError("task.train_size=48", "exceeds the number of examples", "lower it")

    book = Book(tmp_path, deadline=float("inf"))
    book.run_case("failing", fail)
    book.run_case("next", lambda folder: {"stops": 1})
    assert book.cases["failing"]["broken"].startswith("ConfigError: task.train_size=48")
    assert book.cases["next"]["stops"] == 1


def test_machines_and_commits_are_listed_once(tmp_path: Path) -> None:
    book = Book(tmp_path, deadline=0.0)
    for case, where in (("a", "first"), ("b", "second"), ("c", "first")):
        book.note(case, {"where": where, "commit": where})
    assert join_unique(book, "where") == join_unique(book, "commit") == "first; second"
