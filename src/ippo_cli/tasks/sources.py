"""Rows of one source: a file, the files of a pattern, a folder, a Python function, or a dataset on the hub."""

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
    """The rows of a file, of the files of a pattern in the order of their names, of a folder, of a function, or of a
    hub dataset: a table that lies on the disk, of which what is asked for is read.

    `first`: only so many, and no more than these are fetched or unpacked; they are held in memory.
    """
    from datasets import disable_progress_bars
    from datasets.utils.logging import CRITICAL, set_verbosity

    if "HF_DATASETS_DISABLE_PROGRESS_BARS" not in os.environ:
        disable_progress_bars()
    set_verbosity(CRITICAL)  # whatever it cannot read it raises as well
    if is_code_reference(source):
        return _call_row_function(key, source, first)
    pattern, is_local = is_pattern(source), not has_splits(source)
    files = expand_pattern(source) if pattern else [source]
    if not files:
        raise PreflightError(f"{key}={source}: no file has such a name")
    for file in files:  # the readers would have no word for these
        if Path(file).is_file() and not Path(file).stat().st_size:
            raise PreflightError(f"{key}={file} has no rows")
        if Path(file).is_file() and file_suffix(file) not in SUFFIXES:
            raise PreflightError(f"{key}={file}: files that can be read end in {' '.join(SUFFIXES)}")
    try:
        if not is_local and file_suffix(source) in SUFFIXES:
            raise FileNotFoundError("there is no such file")
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
        remedy = f"; {key}_split={split} is what was looked for" if message.startswith("Unknown split") else ""
        raise PreflightError(f"{key}={source}: no rows could be read ({message}){remedy}") from error


def _stream_rows(source: str, files: Sequence[str] | None, data_config: str | None, split: str, count: int) -> Any:
    """The first rows, read one after the other."""
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
    """The rows with all columns that any of them has, as a file's: `datasets` would take those of the first row."""
    from datasets import Dataset

    columns = list(dict.fromkeys(name for row in rows for name in row))
    try:
        table = Dataset.from_list([{name: row.get(name) for name in columns} for row in rows])
    except (ValueError, TypeError, OverflowError):  # Arrow has one kind for a column, and integers of 64 bits
        return RowTable(rows)
    return restore_row_types(table, rows)


def _stream_file(file: str) -> Any:
    """Its rows, one after the other."""
    from datasets import load_dataset

    if file_suffix(file) in SEPARATORS:
        check_readable(file)
        return csv_rows(file)
    if READERS[file_suffix(file)] == "json":
        return json_rows(file)
    return load_dataset("parquet", data_files=to_data_files([file], hashed=False), split="train", streaming=True)


def _call_row_function(key: str, source: str, first: int | None) -> Any:
    """The rows that a function returns or yields, called without arguments."""
    function = load_function(source, key)
    try:
        return _to_table([dict(row) for row in islice(function(), first)])
    except Exception as error:  # the user's code, or rows that have no common columns
        raise PreflightError(f"{key}={source}: no rows could be made ({format_user_error(error)})") from error


def _load_files(files: Sequence[str]) -> Any:
    """The rows of files in their order, with the values that are written in them."""
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
    """The table that `load` makes of files of one kind, with all rows and with values as they are written.

    Rows that `load` cannot read, or reads in another number, are held in memory.
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
    """A split of a folder, of a dataset on the hub, or of the files that a reader is given.

    Parquet is read a part of a file at a time: as it comes, pyarrow keeps all that it has read of a file until its end.
    That is set after the dataset has its name in the cache, so that what was fetched otherwise is found without a net.
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
    """A split of a folder's files. What its README.md declares of the columns holds; where that says nothing, values
    are as they are written."""
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
    """The files of a folder's split, as far as they are ours to read; none where its README.md declares columns."""
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
    """Every cell is the text that stands in it, `007` and `None` too; an empty one is missing."""
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
