"""What a campaign puts into its page."""

from __future__ import annotations

from pathlib import Path

from book import Book
from campaign import MARKERS, found_where, write_report

from ippo_cli.config.errors import ConfigError


def test_parts_that_were_not_run_keep_their_rows_and_where_they_were_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    old = ["| flips | 1 seen | 0.0 | an old machine |", "| hangs | 3 of 23 | 2.6 | an old machine |"]
    page.write_text("\n".join(["before", MARKERS[0], "| part | x |", "|---|---|", *old, MARKERS[1], "after\n"]))
    write_report(["| hangs | 23 of 23 | 9.0 | a new one |", "| zero | 1 | 1.0 | a new one |"], page)
    lines = page.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert lines[4:7] == [old[0], "| hangs | 23 of 23 | 9.0 | a new one |", "| zero | 1 | 1.0 | a new one |"]


def test_a_case_that_cannot_even_begin_is_broken_and_ends_no_campaign(tmp_path: Path) -> None:
    def refused(place: Path) -> dict[str, object]:
        raise ConfigError("task.train_size=48", "asks for more examples than there are", "lower it")

    book = Book(tmp_path, deadline=float("inf"))
    book.do("one", refused)
    book.do("two", lambda place: {"stops": 1})
    assert book.cases["one"]["broken"].startswith("ConfigError: task.train_size=48")
    assert book.cases["two"]["stops"] == 1


def test_where_the_cases_of_a_part_were_run_is_told_once_each(tmp_path: Path) -> None:
    book = Book(tmp_path, deadline=0.0)
    for case, where in (("a", "here"), ("b", "there"), ("c", "here")):
        book.note(case, {"where": where})
    assert found_where(book) == "here; there"
