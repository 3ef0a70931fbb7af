"""Rows of tables as examples: columns renamed, each row made by a function, some left out.

Tables lie on the disk, and a row is read and made when an iteration wants it, so that data may be larger than memory.
What is held in memory is which rows are kept.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import accumulate
from typing import Any

from jinja2 import TemplateError

from ippo_cli.config.errors import ConfigError, IppoError, PreflightError
from ippo_cli.config.python_names import is_code_reference
from ippo_cli.config.schema import JsonlConfig
from ippo_cli.config.text import format_columns as column_names
from ippo_cli.types import Example
from ippo_cli.user_code.errors import format_user_error
from ippo_cli.user_code.load import load_function
from ippo_cli.user_code.templates import ENVIRONMENT

ExampleMaker = Callable[[Mapping[str, Any]], Example]
DROPPED = object()


@dataclass(frozen=True, kw_only=True)
class RowCounts:
    """What became of the rows of a source."""

    source: str
    read: int
    dropped: Mapping[str, int]  # by the key that left them out

    def __str__(self) -> str:
        left = ", ".join(f"{count} left out by {key}" for key, count in self.dropped.items() if count)
        kept = self.read - sum(self.dropped.values())
        return f"{self.source}: {self.read} rows, {left}: {kept} are used" if left else f"{self.source}: {kept} rows"


class ExampleRows(Sequence[Example]):
    """Examples made of the rows of a table."""

    def __init__(self, table: Sequence[Any], make: ExampleMaker, places: Sequence[int] | range) -> None:
        self.table, self.make, self.places = table, make, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return ExampleRows(self.table, self.make, self.places[place])
        return self.make(self.table[self.places[place]])

    def select(self, places: Sequence[int]) -> ExampleRows:
        """Some of them."""
        return ExampleRows(self.table, self.make, [self.places[place] for place in places])


def identity(row: Mapping[str, Any]) -> Example:
    return row


class JoinedRows(Sequence[Example]):
    """The rows of several sources, one after the other."""

    def __init__(
        self, parts: Sequence[ExampleRows], weights: Sequence[float] | None = None, counts: Sequence[RowCounts] = ()
    ) -> None:
        self.parts, self.weights = list(parts), None if weights is None else tuple(weights)
        self.counts = tuple(counts)  # what became of the rows of each source
        self._ends = list(accumulate(map(len, self.parts)))

    @property
    def sizes(self) -> list[int]:
        return [len(part) for part in self.parts]

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return self.select(range(*place.indices(len(self))))
        if place < 0:
            place += len(self)
        if not 0 <= place < len(self):
            raise IndexError(place)
        number = bisect_right(self._ends, place)
        return self.parts[number][place - (self._ends[number - 1] if number else 0)]

    def without_weights(self) -> JoinedRows:
        """The same, of which no source has a share: as they are asked about in evaluations."""
        return JoinedRows(self.parts, None, self.counts)

    def select(self, places: Sequence[int]) -> JoinedRows:
        """Some of them, which are given in their order; sources and their weights stay."""
        starts = [0, *self._ends[:-1]]
        return JoinedRows(
            [
                part.select([place - start for place in places if start <= place < end])
                for part, start, end in zip(self.parts, starts, self._ends, strict=True)
            ],
            self.weights,
            self.counts,
        )


def take_rows(rows: Any, places: Sequence[int]) -> Sequence[Example]:
    """Some rows, by their places in their order."""
    if isinstance(rows, JoinedRows):
        return rows.select(places)
    return rows.select(places) if hasattr(rows, "select") else [rows[place] for place in places]


@dataclass(kw_only=True)
class RowPreparation:
    """What keys make of rows: `task.columns`, then `task.map`, then `task.filter`."""

    config: JsonlConfig
    counts: list[RowCounts] = field(default_factory=list)

    @property
    def changes_rows(self) -> bool:
        return bool(self.config.columns or self.config.map or self.config.filter or self.config.weights)

    def rows(self, table: Any, source: str) -> ExampleRows:
        """Those of a table that are kept, as examples; how many are not is counted."""
        make, keep = self._make_example_maker(table), self._make_filter()
        num_dropped = {f"task.{key}": 0 for key in ("map", "filter") if getattr(self.config, key) is not None}
        if not num_dropped:
            self.counts.append(RowCounts(source=source, read=len(table), dropped={}))
            return ExampleRows(table, make, range(len(table)))
        places: list[int] = []
        for place in range(len(table)):
            example = make(table[place])
            if example is DROPPED:
                num_dropped["task.map"] += 1
            elif not keep(example):
                num_dropped["task.filter"] += 1
            else:
                places.append(place)
        self.counts.append(RowCounts(source=source, read=len(table), dropped=num_dropped))
        return ExampleRows(table, make, places)

    def check_columns(self, tables: Mapping[str, Any]) -> None:
        """Raise `PreflightError` for a column of `task.columns` that sources lack, by name: of all of these."""
        for name, wanted in self.config.columns.items():
            lacking = [source for source, table in tables.items() if _find_column(wanted, table.column_names) is None]
            if lacking:
                there = list(dict.fromkeys(path for source in lacking for path in tables[source].column_names))
                raise PreflightError(
                    f"task.columns.{name}={_format_names(wanted)}: there is no such column in {', '.join(lacking)}; "
                    f"there are: {column_names(there)}; {_column_hint(name, wanted, there, tables, lacking)}"
                )

    def _make_example_maker(self, table: Any) -> ExampleMaker:
        columns = {name: _find_column(wanted, table.column_names) or [] for name, wanted in self.config.columns.items()}
        mapped = None if self.config.map is None else load_function(self.config.map, "task.map")
        setting = f"task.map={self.config.map}"

        def make(row: Mapping[str, Any]) -> Any:
            example: Any = {**row, **{name: _get_path(row, path, name) for name, path in columns.items()}}
            if mapped is None:
                return example
            try:
                made = mapped(example)
            except IppoError:
                raise
            except (Exception, SystemExit) as error:
                raise ConfigError(
                    setting, f"fails on a row ({format_user_error(error)})", "correct it there"
                ) from error
            if made is None:
                return DROPPED
            if not isinstance(made, Mapping):
                raise ConfigError(setting, f"makes {made!r:.60} of a row", "return the example as a dict, or None")
            return dict(made)

        return make

    def _make_filter(self) -> Callable[[Example], bool]:
        wanted = self.config.filter
        if wanted is None:
            return lambda example: True
        setting = f"task.filter={wanted}"
        predicate = (
            load_function(wanted, "task.filter") if is_code_reference(wanted) else _compile_expression(wanted, setting)
        )

        def keep(example: Example) -> bool:
            try:
                return bool(predicate(example))
            except IppoError:
                raise
            except (Exception, SystemExit) as error:
                raise ConfigError(
                    setting, f"fails on a row ({format_user_error(error)})", f"rows have: {column_names(example)}"
                ) from error

        return keep


def _compile_expression(text: str, setting: str) -> Callable[[Example], Any]:
    """An expression of Jinja's, of an example's fields."""
    try:
        compiled = ENVIRONMENT.compile_expression(text, undefined_to_none=False)
    except TemplateError as error:
        raise ConfigError(
            setting, f"is no expression of Jinja's ({error})", "write level == 'easy', or path.py:function"
        ) from error
    return lambda example: compiled(**example)


def _find_column(wanted: Any, columns: Sequence[str]) -> list[str] | None:
    """The path of a column: the first of those that are named whose beginning is there."""
    for path in _candidate_names(wanted):
        if path in columns:
            return [path]
        if (parts := path.split("."))[0] in columns:
            return parts
    return None


def _candidate_names(wanted: Any) -> list[str]:
    return [str(path) for path in (wanted if isinstance(wanted, list) else [wanted])]


def _format_names(wanted: Any) -> str:
    return f"[{','.join(_candidate_names(wanted))}]" if isinstance(wanted, list) else str(wanted)


def _column_hint(
    name: str, wanted: Any, columns: Sequence[str], tables: Mapping[str, Any], lacking: Sequence[str]
) -> str:
    """What would work: the column of the field's own name, or that with the most alike name."""
    alike = [
        path for one in (*_candidate_names(wanted), name) for path in get_close_matches(one, columns, n=1, cutoff=0.5)
    ]
    best = name if name in columns else alike[0] if alike else columns[0] if columns else "COLUMN"
    if len(lacking) == len(tables):
        bare = re.fullmatch(r"[\w.-]+", best)
        return f"write task.columns.{name}={best}" if bare else f"""write 'task.columns.{name}="{best}"'"""
    return f"name one for each kind of source: task.columns.{name}=[{','.join([*_candidate_names(wanted), best])}]"


def _get_path(row: Any, path: Sequence[str], name: str) -> Any:
    """What lies at a path through dicts and lists."""
    value = row
    for part in path:
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise PreflightError(
                f"task.columns.{name}={'.'.join(path)}: a row has nothing there (no {part!r} in {value!r:.60})"
            ) from error
    return value
