"""Local data files: suffixes, cache keys, row counts, and checks before reading."""

from __future__ import annotations

import csv
import hashlib
import sys
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from glob import has_magic
from io import TextIOWrapper
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ippo_cli.config.text_files import ENCODING_REMEDY, locate_undecodable_byte
from ippo_cli.tasks.json_rows import UnreadableFile, count_json_rows, json_rows, open_binary

READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
SEPARATORS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (*READERS, *SEPARATORS)
PARQUET_MAGIC = b"PAR1"  # first and last bytes of a Parquet file


def file_suffix(file: str) -> str:
    """Return the suffix that selects the reader; `.gz` is ignored."""
    return Path(file.removesuffix(".gz")).suffix


def to_data_files(files: Sequence[str], *, hashed: bool = True) -> Any:
    """Return the files in the form in which `datasets` does not interpret their names as glob patterns.

    With `hashed`, size and SHA-256 are part of the cache key; `datasets` itself uses only the modification time.
    """
    from datasets.data_files import DataFilesList

    paths = [str(Path(file).absolute()) for file in files]
    keys: list[Any] = [content_key(path) if hashed else () for path in paths]
    return DataFilesList(paths, keys)


def content_key(file: str) -> tuple[str, ...]:
    """Return size and SHA-256 of a file."""
    found = Path(file).stat()
    return _content_key(file, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)


@cache
def _content_key(file: str, size: int, *_: int) -> tuple[str, ...]:
    with open(file, "rb") as handle:
        return (str(size), hashlib.file_digest(handle, "sha256").hexdigest())


@contextmanager
def glob_safe_folder(folder: str) -> Iterator[str]:
    """Yield the folder, or a folder of links to its files if its path has glob characters: `datasets` globs paths."""
    root = Path(folder).resolve()
    if not has_magic(str(root)):
        yield folder
        return
    with TemporaryDirectory(prefix="ippo-data-") as links:
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            link = Path(links, file.relative_to(root))
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file)
        yield links


def count_rows(file: str) -> int:
    """Count the rows of a file without `datasets`. Raises `UnreadableFile`."""
    import pyarrow.parquet as pq

    kind = file_suffix(file)
    if kind in SEPARATORS:
        return sum(1 for _ in csv_rows(file))
    return count_json_rows(file) if READERS[kind] == "json" else pq.read_metadata(file).num_rows


def read_rows(file: str) -> Iterator[Mapping[str, Any]]:
    """Read the rows of a file without `datasets`. Raises `UnreadableFile`."""
    import pyarrow.parquet as pq

    kind = file_suffix(file)
    if kind in SEPARATORS:
        return csv_rows(file)
    return json_rows(file) if READERS[kind] == "json" else iter(pq.read_table(file).to_pylist())


def csv_rows(file: str) -> Iterator[Mapping[str, str | None]]:
    """Yield the rows of a CSV file below its header; a row with more cells than columns raises `UnreadableFile`."""
    columns = csv_columns(file)
    csv.field_size_limit(sys.maxsize)
    with open_binary(file) as data, TextIOWrapper(data, "utf-8-sig", newline="") as text:
        reader = csv.reader(text, delimiter=SEPARATORS[file_suffix(file)], strict=True)
        next(reader)
        first_line = reader.line_num + 1
        try:
            for cells in reader:
                if len(cells) > len(columns):
                    raise UnreadableFile(
                        f"line {first_line} of {file} has {len(cells)} cells, "
                        f"but the header has {len(columns)} columns; quote cells that contain the separator"
                    )
                first_line = reader.line_num + 1
                if cells and not (len(cells) == 1 and cells[0].isspace()):
                    yield dict.fromkeys(columns) | {
                        name: cell or None for name, cell in zip(columns, cells, strict=False)
                    }
        except csv.Error as error:
            raise UnreadableFile(f"line {first_line} of {file} has an unclosed quote ({error})") from error


def csv_columns(file: str) -> list[str]:
    """Return the columns of a CSV file. Raises `UnreadableFile` for duplicate names."""
    with open_binary(file) as data, TextIOWrapper(data, "utf-8-sig", newline="") as text:
        header = next(csv.reader(text, delimiter=SEPARATORS[file_suffix(file)]), [])
    duplicates = sorted({name for name in header if header.count(name) > 1})
    if duplicates:
        raise UnreadableFile(
            f"{file} has two columns named {duplicates[0]!r}; column names in the first line must be unique"
        )
    return header


def check_readable(file: str) -> None:
    """Raise `UnreadableFile` for CSV that is not UTF-8, and for a Parquet file without its first or last bytes."""
    kind = file_suffix(file)
    if READERS.get(kind) == "parquet":
        with open(file, "rb") as data:
            begins = data.read(len(PARQUET_MAGIC))
            data.seek(-min(len(PARQUET_MAGIC), Path(file).stat().st_size), 2)
            if (begins, data.read()) != (PARQUET_MAGIC, PARQUET_MAGIC):
                raise UnreadableFile(f"{file} is not a complete Parquet file")
    elif kind in SEPARATORS:
        with open_binary(file) as lines:
            for number, line in enumerate(lines, 1):
                try:
                    line.removeprefix(BOM_UTF8).decode("utf-8")
                except UnicodeDecodeError as error:
                    place = locate_undecodable_byte(line, error, number)
                    raise UnreadableFile(f"{file}: {place}; {ENCODING_REMEDY}") from error


def hash_data_files(data_files: Mapping[Any, Sequence[str]]) -> dict[str, Any]:
    """Return the files of a folder's splits with content hashes as keys; links are resolved."""
    return {
        str(split): to_data_files([str(Path(file).resolve()) for file in files]) for split, files in data_files.items()
    }
