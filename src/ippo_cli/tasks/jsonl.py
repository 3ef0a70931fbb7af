"""Examples from JSON-lines, CSV or Parquet files, from a function, or from a dataset on the hub, through `datasets`."""

from __future__ import annotations

import csv
import gzip
import os
from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.config.own_code import names_code
from ippo_cli.config.schema import JsonlConfig
from ippo_cli.rewards.located import located
from ippo_cli.tasks.templates import fields_of
from ippo_cli.tasks.user_code import load_function
from ippo_cli.types import Example

READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
SEPARATORS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (*READERS, *SEPARATORS)


def jsonl_examples(config: JsonlConfig, seed: int) -> tuple[Sequence[Example], Sequence[Example]]:
    """Training and held-out rows. The order is the file's; shuffling is the prompt stream's."""
    train = _read("task.train", config.train, config.data_config, config.train_split, config.train_size)
    _refuse_nulls(f"task.train={config.train}", train, config)
    return train, held_out_rows(config)


def held_out_rows(config: JsonlConfig) -> Sequence[Example]:
    """Held-out rows alone."""
    held_out = _read("task.eval", config.eval, config.data_config, config.eval_split, config.eval_size)
    _refuse_nulls(f"task.eval={config.eval}", held_out, config)
    return held_out


def _refuse_nulls(source: str, rows: Any, config: JsonlConfig) -> None:
    """Raise where a field that some agent is asked with is missing in some row: the reader made nulls of those."""
    for name, agent in config.agents.items():
        for leaf in ("template", "turn_template", "answer"):
            template = getattr(agent, leaf) or ""
            setting = f"task.agents.{name}.{leaf}"
            for field in sorted(fields_of(template, setting) & set(rows.column_names)):
                if nulls := rows.data.column(field).null_count:
                    raise PreflightError(
                        f"{source}: {nulls} of {len(rows)} rows have no {field!r}, which {setting} "
                        f"names; leave them out of the file"
                    )


def _read(key: str, source: Any, data_config: str | None, split: str, size: int | None) -> Sequence[Example]:
    if source is None:
        raise ConfigError(f"{key}=null", "names no data", f"set {key} to a .jsonl or .parquet file or a hub dataset id")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    from datasets import concatenate_datasets

    listed = list(source) if isinstance(source, list) else [source]
    parts = [_load(key, str(name), data_config, split) for name in listed]
    try:
        rows: Any = parts[0] if len(parts) == 1 else concatenate_datasets(parts)
    except ValueError as error:
        raise PreflightError(f"{key}={source}: rows of these do not go together ({_reason(error)})") from error
    if size is not None:
        rows = rows.select(range(min(size, len(rows))))
    if not len(rows):
        raise PreflightError(f"{key}={source} has no rows")
    return rows


def _load(key: str, source: str, data_config: str | None, split: str) -> Any:
    """The rows of a file, of the files of a pattern in the order of their names, of a folder, of a function, or of a
    hub dataset."""
    from datasets import load_dataset

    if names_code(source):
        return _made(key, source)
    pattern = has_magic(source) and not Path(source).exists()
    files = sorted(file for file in glob(source, recursive=True) if Path(file).is_file()) if pattern else [source]
    if not files:
        raise PreflightError(f"{key}={source}: no file has such a name")
    for file in files:  # the readers would have no word for these
        if Path(file).is_file() and not Path(file).stat().st_size:
            raise PreflightError(f"{key}={file} has no rows")
        if Path(file).is_file() and _suffix(file) not in SUFFIXES:
            raise PreflightError(f"{key}={file}: files that can be read end in {' '.join(SUFFIXES)}")
    try:
        if pattern or Path(source).is_file():
            return _load_files(files)
        if _suffix(source) in SUFFIXES:
            raise FileNotFoundError("there is no such file")
        return load_dataset(source, data_config, split=split)
    except Exception as error:
        reason = _reason(error)
        remedy = f"; {key}_split={split} is what was looked for" if reason.startswith("Unknown split") else ""
        raise PreflightError(f"{key}={source}: no rows could be read ({reason}){remedy}") from error


def _made(key: str, source: str) -> Any:
    """The rows that a function returns, called without arguments."""
    from datasets import Dataset

    function = load_function(source, key)
    try:
        return Dataset.from_list([dict(row) for row in function()])
    except Exception as error:  # the user's code, or rows that have no common columns
        raise PreflightError(f"{key}={source}: no rows could be made ({located(error)})") from error


def _load_files(files: Sequence[str]) -> Any:
    from datasets import concatenate_datasets, load_dataset

    kinds = {_suffix(file) for file in files}
    if kinds & set(SEPARATORS) or len(kinds) > 1:
        parts = [_load_csv(file) if _suffix(file) in SEPARATORS else _load_files([file]) for file in files]
        return concatenate_datasets(parts)
    return load_dataset(READERS[kinds.pop()], data_files=list(files), split="train")


def _load_csv(file: str) -> Any:
    """Every cell is the text that stands in it, `007` and `None` too; an empty one is missing."""
    from datasets import Features, Value, load_dataset

    separator = SEPARATORS[_suffix(file)]
    with (gzip.open if file.endswith(".gz") else open)(file, "rt", encoding="utf-8-sig", newline="") as text:
        columns = next(csv.reader(text, delimiter=separator))
    return load_dataset(
        "csv",
        data_files=file,
        split="train",
        sep=separator,
        encoding="utf-8-sig",
        keep_default_na=False,
        na_values=[""],
        features=Features({column: Value("string") for column in columns}),
    )


def _suffix(file: str) -> str:
    """What says how a file is read; compressed ones are read as what is in them."""
    return Path(file.removesuffix(".gz")).suffix


def _reason(error: Exception) -> str:
    from datasets.exceptions import DatasetGenerationError

    cause = error.__cause__ if isinstance(error, DatasetGenerationError) and error.__cause__ else error
    return (str(cause).strip() or type(cause).__name__).splitlines()[0]
