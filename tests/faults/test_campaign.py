"""What a campaign puts into its page."""

from __future__ import annotations

from pathlib import Path

from book import Book
from campaign import MARKERS, told, which, write_report

from ippo_cli.config.errors import ConfigError

ROWS = ["| flips | c1 | 1 seen | 0.0 | old |", "| hangs | c1 | 3 of 23 | 2.6 | old |", "| zero | c0 | 2 | 1 | old |"]


def with_rows(place: Path, lines: list[str], *, beside: bool) -> list[str]:
    page = place / "page.md"
    page.write_text("\n".join(["before", MARKERS[0], "| part | x |", "|---|---|", *ROWS, MARKERS[1], "after\n"]))
    write_report(lines, page, beside=beside)
    before, _, _, _, *found, _, after = page.read_text().splitlines()
    assert (before, after) == ("before", "after")
    return found


def test_parts_that_were_not_run_keep_their_rows(tmp_path: Path) -> None:
    new = ["| hangs | c2 | 23 of 23 | 9.0 | new |", "| soak | c2 | 1 | 1.0 | new |"]
    assert with_rows(tmp_path, new, beside=False) == [ROWS[0], new[0], ROWS[2], new[1]]


def test_cases_that_were_chosen_stand_beside_what_was_known_at_other_commits(tmp_path: Path) -> None:
    new = ["| hangs | c2 | 4 of 23 | 9.0 | new |", "| zero | c0; c2 | 3 | 1 | new |"]
    assert with_rows(tmp_path, new, beside=True) == [ROWS[0], ROWS[1], new[0], new[1]]


def test_only_cases_whose_names_are_chosen_are_done(tmp_path: Path) -> None:
    book = Book(tmp_path, deadline=float("inf"), only="^zero3|_on_2")
    for case in ("zero3_from_1", "0_on_2", "zero1_from_1"):
        book.do(case, lambda place: {"runs": 1})
    assert list(book.cases) == ["zero3_from_1", "0_on_2"]
    assert which(book, 3) == " (zero3 from 1, 0 on 2)"
    assert which(book, 2) == ""


def test_a_case_that_cannot_even_begin_is_broken_and_ends_no_campaign(tmp_path: Path) -> None:
    def refused(place: Path) -> dict[str, object]:
        raise ConfigError("task.train_size=48", "asks for more examples than there are", "lower it")

    book = Book(tmp_path, deadline=float("inf"))
    book.do("one", refused)
    book.do("two", lambda place: {"stops": 1})
    assert book.cases["one"]["broken"].startswith("ConfigError: task.train_size=48")
    assert book.cases["two"]["stops"] == 1


def test_where_and_with_which_program_the_cases_of_a_part_were_run_is_told_once_each(tmp_path: Path) -> None:
    book = Book(tmp_path, deadline=0.0)
    for case, where in (("a", "here"), ("b", "there"), ("c", "here")):
        book.note(case, {"where": where, "commit": where})
    assert told(book, "where") == told(book, "commit") == "here; there"
