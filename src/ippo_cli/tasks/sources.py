"""Load the rows of one source: a file, a glob pattern, a folder, a Python function, or a hub dataset."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ippo_cli.config.data import expand_pattern, has_splits, is_pattern
from ippo_cli.config.errors import IppoError, PreflightError, is_disk_full
from ippo_cli.config.python_names import is_code_reference
from ippo_cli.tasks.data_files import (
    READERS,
    SEPARATORS,
    SUFFIXES,
    check_readable,
    count_rows,
    csv_columns,
    csv_rows,
    file_suffix,
    glob_safe_folder,
    hash_data_files,
    read_rows,
    to_data_files,
)
from ippo_cli.tasks.json_rows import UnreadableFile, check_single_object, json_rows
from ippo_cli.tasks.json_types import (
    ConcatenatedTable,
    PlainTable,
    RowTable,
    restore_parquet_types,
    restore_row_types,
    restore_types,
)
from ippo_cli.user_code.errors import format_user_error
from ippo_cli.user_code.load import load_function


def load_table(key: str, source: str, data_config: str | None, split: str, *, first: int | None = None) -> Any:
    """Load a source as a table on disk with rows read on access; files of a pattern are sorted by name.

    `first`: load only this many rows, by streaming, into memory. Raises `PreflightError`.
    """
    from datasets import disable_progress_bars
    from datasets.utils.logging import CRITICAL, set_verbosity

    if "HF_DATASETS_DISABLE_PROGRESS_BARS" not in os.environ:
        disable_progress_bars()
    set_verbosity(CRITICAL)  # read errors are also raised
    if is_code_reference(source):
        return _call_row_function(key, source, first)
    pattern, is_local = is_pattern(source), not has_splits(source)
    files = expand_pattern(source) if pattern else [source]
    if not files:
        raise PreflightError(f"{key}={source}: no file matches this pattern; check it in the folder {Path.cwd()}")
    for file in files:  # the readers have no clear message for these
        if Path(file).is_file() and not Path(file).stat().st_size:
            raise PreflightError(f"{key}={file} has no rows; use a file with one row per example")
        if Path(file).is_file() and file_suffix(file) not in SUFFIXES:
            raise PreflightError(f"{key}={file}: supported file suffixes are {' '.join(SUFFIXES)}")
    try:
        if not is_local and file_suffix(source) in SUFFIXES:
            raise FileNotFoundError(f"the file does not exist in {Path(source).absolute().parent}")
        if first is not None:
            return _stream_rows(source, files if is_local else None, data_config, split, first)
        if is_local:
            return _load_files(files)
        if Path(source).is_dir():
            return _load_folder(source, data_config, split)
        return _load_dataset(source, data_config, split)
    except IppoError:
        raise
    except Exception as error:
        message = str(error) if isinstance(error, UnreadableFile) else error_reason(error)
        remedy = f"; the requested split is {key}_split={split}" if message.startswith("Unknown split") else ""
        if Path(source).is_dir() and not remedy:
            remedy = (
                f"; the files of a folder must be rows with equal columns: name some, such as {key}='{source}/*.jsonl'"
            )
        raise PreflightError(f"{key}={source}: no rows could be read ({message}){remedy}") from error


def _stream_rows(source: str, files: Sequence[str] | None, data_config: str | None, split: str, count: int) -> Any:
    """Read the first `count` rows by streaming."""
    from datasets import load_dataset

    if files is None and Path(source).is_dir():
        files = _undeclared_files(source, data_config, split) or None
    if files is None:
        with glob_safe_folder(source) as folder:
            return _to_table(list(islice(load_dataset(folder, data_config, split=split, streaming=True), count)))
    rows: list[dict[str, Any]] = []
    for file in files:
        if len(rows) < count:
            table = _stream_file(file)
            rows += [dict(row) for row in islice(table, count - len(rows))]
    return _to_table(rows)


def _to_table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Build a table with the union of the rows' columns (`datasets` uses the columns of the first row)."""
    from datasets import Dataset

    columns = list(dict.fromkeys(name for row in rows for name in row))
    try:
        table = Dataset.from_list([{name: row.get(name) for name in columns} for row in rows])
    except (ValueError, TypeError, OverflowError):  # Arrow has one type per column, and 64-bit integers
        return RowTable(rows)
    return restore_row_types(table, rows)


def _stream_file(file: str) -> Any:
    """Stream the rows of a file."""
    from datasets import load_dataset

    if file_suffix(file) in SEPARATORS:
        check_readable(file)
        return csv_rows(file)
    if READERS[file_suffix(file)] == "json":
        return json_rows(file)
    return load_dataset("parquet", data_files=to_data_files([file], hashed=False), split="train", streaming=True)


def _call_row_function(key: str, source: str, first: int | None) -> Any:
    """Build a table from the rows that a user function without arguments returns or yields."""
    function = load_function(source, key)
    try:
        return _to_table([dict(row) for row in islice(function(), first)])
    except Exception as error:  # from user code, or from rows that are not mappings
        raise PreflightError(f"{key}={source}: the function failed ({format_user_error(error)})") from error


def _load_files(files: Sequence[str]) -> Any:
    """Load files in their order, with the original values."""
    from datasets import concatenate_datasets

    kinds = {file_suffix(file) for file in files}
    if kinds & set(SEPARATORS) or len(kinds) > 1:
        parts = [_load_csv(file) if file_suffix(file) in SEPARATORS else _load_files([file]) for file in files]
        if len(parts) == 1:
            return parts[0]
        plain = any(isinstance(part, PlainTable) for part in parts)
        return ConcatenatedTable(parts) if plain else concatenate_datasets(parts)
    reader = READERS[kinds.pop()]
    return _load_checked(lambda: _load_dataset(reader, None, "train", data_files=to_data_files(files)), files)


def _load_checked(load: Callable[[], Any], files: Sequence[str]) -> Any:
    """Load files of one kind with `load`, and restore missing rows and original values.

    If `load` fails or returns a wrong number of rows, the rows are read into memory.
    """
    for file in files:
        check_readable(file)
    count = sum(map(count_rows, files))
    try:
        table = load()
        complete = len(table) == count
    except Exception as error:
        if is_disk_full(error):
            raise
        complete = False
    if not complete:
        table = RowTable([row for file in files for row in read_rows(file)])
    kind = READERS.get(file_suffix(files[0]))
    if kind == "json" and len(files) == len(table) == 1:
        check_single_object(files[0], next(iter(json_rows(files[0]))))
    if isinstance(table, PlainTable):
        return table
    if kind == "json":
        return restore_types(table, files)
    return restore_parquet_types(table, files) if kind == "parquet" and len(files) > 1 else table


def _load_dataset(source: str, data_config: str | None, split: str, **options: Any) -> Any:
    """Load a split of a folder, of a hub dataset, or of files for a reader.

    Parquet is read with a buffered stream: with pyarrow's defaults, all data of a file stays in memory until its end.
    The option is set after the cache name is computed, so that cached datasets are still found offline.
    """
    from datasets import load_dataset_builder
    from pyarrow.dataset import ParquetFragmentScanOptions

    builder = load_dataset_builder(source, data_config, **options)
    config: Any = builder.config
    if hasattr(config, "fragment_scan_options"):
        config.fragment_scan_options = ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True)
    builder.download_and_prepare()
    return builder.as_dataset(split=split)


def _load_folder(source: str, data_config: str | None, split: str) -> Any:
    """Load a split of a folder; columns have the types declared in its README.md, or else original values."""
    from datasets import ReadInstruction, load_dataset_builder

    with glob_safe_folder(source) as folder:
        found = hash_data_files(load_dataset_builder(folder, data_config).config.data_files or {})
        name, part, _ = split.partition("[")
        files = [] if "+" in split else _undeclared_files(source, data_config, name)
        if not files:
            return _load_dataset(folder, data_config, split, data_files=found)
        texts = {file_suffix(file) for file in files} <= set(SEPARATORS)
        whole = lambda: _load_dataset(folder, data_config, name, data_files=found)  # noqa: E731
        table = _load_files(files) if texts else _load_checked(whole, files)
    if not part:
        return table
    [places] = ReadInstruction.from_spec(split).to_absolute({name: len(table)})
    return table.select(range(places.from_ or 0, len(table) if places.to is None else places.to))


def _undeclared_files(source: str, data_config: str | None, split: str) -> list[str]:
    """Return the files of a folder's split if we can read them; empty if its README.md declares column types."""
    from datasets import load_dataset_builder
    from datasets.info import DatasetInfosDict

    if any(info.features is not None for info in DatasetInfosDict.from_directory(source).values()):
        return []
    with glob_safe_folder(source) as folder:
        config = load_dataset_builder(folder, data_config).config
        files = [str(Path(file).resolve()) for file in (config.data_files or {}).get(split, ())]
    kinds = {file_suffix(file) for file in files}
    separated = {SEPARATORS[kind] for kind in kinds & set(SEPARATORS)} - {getattr(config, "sep", None)}
    return files if kinds <= set(SUFFIXES) and not separated else []


def _load_csv(file: str) -> Any:
    """Load a CSV file with every cell as text (also `007` and `None`); empty cells are null."""
    from datasets import Features, Value, load_dataset

    def load() -> Any:
        return load_dataset(
            "csv",
            data_files=to_data_files([file]),
            split="train",
            sep=SEPARATORS[file_suffix(file)],
            encoding="utf-8-sig",
            keep_default_na=False,
            na_values=[""],
            features=Features({column: Value("string") for column in csv_columns(file)}),
        )

    return _load_checked(load, [file])


def error_reason(error: Exception) -> str:
    from datasets.exceptions import DatasetGenerationError

    cause = error.__cause__ if isinstance(error, DatasetGenerationError) and error.__cause__ else error
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]
