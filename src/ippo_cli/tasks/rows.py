"""Convert table rows to examples: rename columns, apply a function to each row, exclude rows.

Rows are read from disk and converted on access, so data can be larger than memory; only the indices of the used rows
are held in memory.
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
from ippo_cli.config.schema import DataConfig
from ippo_cli.config.text import format_columns as column_names
from ippo_cli.config.text import format_count
from ippo_cli.types import Example
from ippo_cli.user_code.errors import format_user_error
from ippo_cli.user_code.load import load_function
from ippo_cli.user_code.templates import ENVIRONMENT

ExampleMaker = Callable[[Mapping[str, Any]], Example]
DROPPED = object()


@dataclass(frozen=True, kw_only=True)
class RowCounts:
    """How many rows of a source were read and excluded."""

    source: str
    read: int
    dropped: Mapping[str, int]  # by the key that excludes them

    def __str__(self) -> str:
        excluded = ", ".join(f"{count} excluded by {key}" for key, count in self.dropped.items() if count)
        used = self.read - sum(self.dropped.values())
        if not excluded:
            return f"{self.source}: {format_count(used, 'row')}"
        return f"{self.source}: {format_count(self.read, 'row')}, {excluded}: {used} are used"


class ExampleRows(Sequence[Example]):
    """Examples computed from table rows on access."""

    def __init__(self, table: Sequence[Any], make: ExampleMaker, places: Sequence[int] | range) -> None:
        self.table, self.make, self.places = table, make, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return ExampleRows(self.table, self.make, self.places[place])
        return self.make(self.table[self.places[place]])

    def select(self, places: Sequence[int]) -> ExampleRows:
        """Return the examples at these indices."""
        return ExampleRows(self.table, self.make, [self.places[place] for place in places])


def identity(row: Mapping[str, Any]) -> Example:
    return row


class JoinedRows(Sequence[Example]):
    """The concatenated rows of several sources."""

    def __init__(
        self, parts: Sequence[ExampleRows], weights: Sequence[float] | None = None, counts: Sequence[RowCounts] = ()
    ) -> None:
        self.parts, self.weights = list(parts), None if weights is None else tuple(weights)
        self.counts = tuple(counts)  # per source
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
        """Return the same rows without source weights, for evaluation."""
        return JoinedRows(self.parts, None, self.counts)

    def select(self, places: Sequence[int]) -> JoinedRows:
        """Return the rows at these sorted indices; sources and weights stay."""
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
    """Return the rows at these sorted indices."""
    if isinstance(rows, JoinedRows):
        return rows.select(places)
    return rows.select(places) if hasattr(rows, "select") else [rows[place] for place in places]


@dataclass(kw_only=True)
class RowPreparation:
    """Apply `task.columns`, then `task.map`, then `task.filter` to rows."""

    config: DataConfig
    counts: list[RowCounts] = field(default_factory=list)

    @property
    def changes_rows(self) -> bool:
        return bool(self.config.columns or self.config.map or self.config.filter or self.config.weights)

    def prepare_table(self, table: Any, source: str) -> ExampleRows:
        """Return the examples of a table, and append the counts of excluded rows to `counts`."""
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
        """Raise one `PreflightError` for all columns of `task.columns` that some of the tables (name -> table) lack."""
        lines: list[str] = []
        for name, wanted in self.config.columns.items():
            lacking = [source for source, table in tables.items() if _find_column(wanted, table.column_names) is None]
            if lacking:
                available = list(dict.fromkeys(path for source in lacking for path in tables[source].column_names))
                lines.append(
                    f"task.columns.{name}={_format_names(wanted)}: there is no such column in {', '.join(lacking)}; "
                    f"columns are: {column_names(available)}; {_column_hint(name, wanted, available, tables, lacking)}"
                )
        if lines:
            raise PreflightError("\n".join(lines))

    def _make_example_maker(self, table: Any) -> ExampleMaker:
        columns = {name: _find_column(wanted, table.column_names) or [] for name, wanted in self.config.columns.items()}
        mapped = None if self.config.map is None else load_function(self.config.map, "task.map")
        setting = f"task.map={self.config.map}"

        def make(row: Mapping[str, Any]) -> Any:
            example: Any = {**row, **{name: _get_path(row, path, name) for name, path in columns.items()}}
            if mapped is None:
                return example
            try:
                result = mapped(example)
            except IppoError:
                raise
            except (Exception, SystemExit) as error:
                raise ConfigError(
                    setting, f"fails on a row ({format_user_error(error)})", "fix the error there"
                ) from error
            if result is None:
                return DROPPED
            if not isinstance(result, Mapping):
                raise ConfigError(
                    setting, f"returns {result!r:.60} for a row", "return the example as a dict, or None to exclude it"
                )
            return dict(result)

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
                    setting,
                    f"fails on a row ({format_user_error(error)})",
                    f"available fields: {column_names(example)}",
                ) from error

        return keep


def _compile_expression(text: str, setting: str) -> Callable[[Example], Any]:
    """Compile a Jinja expression over an example's fields."""
    try:
        compiled = ENVIRONMENT.compile_expression(text, undefined_to_none=False)
    except TemplateError as error:
        raise ConfigError(
            setting,
            f"is not a valid Jinja expression ({error})",
            "write for example level == 'easy', or path.py:function",
        ) from error
    return lambda example: compiled(**example)


def _find_column(wanted: Any, columns: Sequence[str]) -> list[str] | None:
    """Return the path of the first candidate that is a column, or that starts with a column; else None."""
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
    """Suggest the column with the field's own name, or else the most similar name."""
    similar = [
        path
        for candidate in (*_candidate_names(wanted), name)
        for path in get_close_matches(candidate, columns, n=1, cutoff=0.5)
    ]
    best = name if name in columns else similar[0] if similar else columns[0] if columns else "COLUMN"
    if len(lacking) == len(tables):
        bare = re.fullmatch(r"[\w.-]+", best)
        return f"write task.columns.{name}={best}" if bare else f"""write 'task.columns.{name}="{best}"'"""
    return (
        f"name one column for each kind of source: task.columns.{name}=[{','.join([*_candidate_names(wanted), best])}]"
    )


def _get_path(row: Any, path: Sequence[str], name: str) -> Any:
    """Return the value at a path through dicts and lists. Raises `PreflightError`."""
    value = row
    for part in path:
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise PreflightError(
                f"task.columns.{name}={'.'.join(path)}: a row has no such value (no {part!r} in {value!r:.60})"
            ) from error
    return value
