"""Examples from JSON-lines or Parquet files, or from a dataset on the hub, read through `datasets`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.config.schema import JsonlConfig
from ippo_cli.tasks.prompts import fields_of
from ippo_cli.types import Example

READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}


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
        for leaf, template in (("template", agent.template), ("answer", agent.answer or "")):
            setting = f"task.agents.{name}.{leaf}"
            for field in sorted(fields_of(template, setting) & set(rows.column_names)):
                if nulls := rows.data.column(field).null_count:
                    raise PreflightError(f"{source}: {nulls} of {len(rows)} rows have no {field!r}, which {setting} "
                                         f"names; leave them out of the file")  # fmt: skip


def _read(key: str, source: str | None, data_config: str | None, split: str, size: int | None) -> Sequence[Example]:
    if source is None:
        raise ConfigError(f"{key}=null", "names no data", f"set {key} to a .jsonl or .parquet file or a hub dataset id")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    from datasets import load_dataset
    from datasets.exceptions import DatasetGenerationError

    if Path(source).is_file() and not Path(source).stat().st_size:  # the reader would have no word for it
        raise PreflightError(f"{key}={source} has no rows")
    reader = READERS.get(Path(source).suffix)
    try:
        if Path(source).is_file() and reader:
            rows: Any = load_dataset(reader, data_files=str(source), split="train")
        elif Path(source).suffix in READERS:
            raise FileNotFoundError("there is no such file")
        else:
            rows = load_dataset(source, data_config, split=split)
    except Exception as error:
        cause = error.__cause__ if isinstance(error, DatasetGenerationError) and error.__cause__ else error
        reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
        raise PreflightError(f"{key}={source}: no rows could be read ({reason})") from error
    if size is not None:
        rows = rows.select(range(min(size, len(rows))))
    if not len(rows):
        raise PreflightError(f"{key}={source} has no rows")
    return rows
