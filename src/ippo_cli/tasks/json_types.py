"""Restore the JSON types that Arrow's type coercion changes.

Arrow converts 3 to 3.0 in a column with 2.5, the text "2024-01-05" to a timestamp, and the text "1.50" to the number
1.5 in a column that also has numbers; comparisons of answers would then fail. Changed columns are held in memory with
their original values.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from ippo_cli.tasks.json_rows import json_rows
from ippo_cli.types import Example

SCHEMA_BYTES = 10 << 20
"""Bytes from which the reader infers the column types; later values are cast to these."""
TIMESTAMP_PATTERN = r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
"""The text form of a timestamp."""


class PlainTable(Sequence[Example]):
    """A table that is not a dataset of `datasets`: a sequence of rows with named columns."""

    column_names: list[str]

    def select(self, places: Sequence[int]) -> PlainTable:
        """Return the rows at these indices, with all columns."""
        return RowTable([self[place] for place in places], self.column_names)


class CorrectedTable(PlainTable):
    """A table with some columns replaced."""

    def __init__(self, table: Any, columns: Mapping[str, Sequence[Any]]) -> None:
        self.table, self.columns = table, columns
        self.column_names = table.column_names

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, place: Any) -> Any:
        return {**self.table[place], **{name: values[place] for name, values in self.columns.items()}}

    def select(self, places: Sequence[int]) -> CorrectedTable:
        """Return the rows at these indices."""
        columns = {name: [values[place] for place in places] for name, values in self.columns.items()}
        return CorrectedTable(self.table.select(places), columns)


class RowTable(PlainTable):
    """Rows in memory, for values that Arrow cannot represent."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> None:
        self.rows = rows
        self.column_names = list(dict.fromkeys(name for row in rows for name in row) if columns is None else columns)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:
        row = self.rows[place]
        return {name: row.get(name) for name in self.column_names}


class ConcatenatedTable(PlainTable):
    """Concatenated tables, with the union of their columns."""

    def __init__(self, tables: Sequence[Any]) -> None:
        self.tables = tables
        self.column_names = list(dict.fromkeys(name for table in tables for name in table.column_names))
        self._ends = list(accumulate(map(len, tables)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, place: Any) -> Any:
        number = bisect_right(self._ends, place)
        row = self.tables[number][place - (self._ends[number - 1] if number else 0)]
        return dict.fromkeys(self.column_names) | row


def restore_types(table: Any, files: Sequence[str]) -> Any:
    """Return the table of JSON files with its changed columns restored. Raises `ValueError`."""
    large = len(files) > 1 or Path(files[0]).stat().st_size > SCHEMA_BYTES
    doubtful = ambiguous_columns(table, texts=large)
    return (
        correct_columns(table, doubtful, lambda: (row for file in files for row in json_rows(file)))
        if doubtful
        else table
    )


def restore_parquet_types(table: Any, files: Sequence[str]) -> Any:
    """Return the table of Parquet files; columns with different types per file keep each file's values."""
    import pyarrow.parquet as pq

    schemas = [pq.read_schema(file) for file in files]
    types = {
        name: {schema.field(name).type for schema in schemas if name in schema.names} for name in table.column_names
    }
    mixed_columns = [name for name, kinds in types.items() if len(kinds) > 1]
    if not mixed_columns:
        return table
    columns: dict[str, list[Any]] = {name: [] for name in mixed_columns}
    for file, schema in zip(files, schemas, strict=True):
        part = pq.read_table(file, columns=[name for name in mixed_columns if name in schema.names])
        for name, values in columns.items():
            values += part.column(name).to_pylist() if name in schema.names else [None] * part.num_rows
    return CorrectedTable(table, columns)


def restore_row_types(table: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return the table that was built from these rows, with its changed columns restored."""
    doubtful = ambiguous_columns(table, texts=False)
    return correct_columns(table, doubtful, lambda: iter(rows)) if doubtful else table


def ambiguous_columns(table: Any, *, texts: bool) -> list[str]:
    """Return the columns with a type that may result from coercion; `texts` also checks text columns."""
    schema = table.features.arrow_schema
    found = [field.name for field in schema if _is_ambiguous(field.type)]
    return found + ([field.name for field in schema if _has_timestamps(table, field)] if texts else [])


def correct_columns(table: Any, doubtful: Sequence[str], rows: Callable[[], Iterator[Mapping[str, Any]]]) -> Any:
    """Return the table with the doubtful columns replaced by those of `rows()` if values or types differ."""
    narrow = table.select_columns(list(doubtful))
    wrong: set[str] = set()
    for stored, written in zip(narrow, rows(), strict=True):
        wrong |= {
            name for name in doubtful if name not in wrong and not _is_same_value(stored[name], written.get(name))
        }
    if not wrong:
        return table
    columns: dict[str, list[Any]] = {name: [] for name in doubtful if name in wrong}
    for row in rows():
        for name, values in columns.items():
            values.append(row.get(name))
    return CorrectedTable(table, columns)


def _is_same_value(stored: Any, written: Any) -> bool:
    """Whether value and type are equal; a key that is missing in an object is null in a table."""
    if isinstance(written, dict):
        keys = {*written, *(stored if isinstance(stored, dict) else ())}
        return isinstance(stored, dict) and all(_is_same_value(stored.get(key), written.get(key)) for key in keys)
    if isinstance(written, list):
        same_length = isinstance(stored, list) and len(stored) == len(written)
        return same_length and all(map(_is_same_value, stored, written))
    if isinstance(written, float) and isinstance(stored, float) and math.isnan(written):
        return math.isnan(stored)
    return type(stored) is type(written) and stored == written


def _is_ambiguous(kind: Any) -> bool:
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):  # columns of mixed types, stored as JSON text
        return True
    inner = [kind.field(place).type for place in range(kind.num_fields)] if pa.types.is_nested(kind) else []
    return pa.types.is_temporal(kind) or pa.types.is_floating(kind) or any(map(_is_ambiguous, inner))


def _has_timestamps(table: Any, field: Any) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_string(field.type) or pa.types.is_large_string(field.type)):
        return False
    return bool(pc.any(pc.match_substring_regex(table.data.column(field.name), TIMESTAMP_PATTERN)).as_py())  # pyright: ignore
