"""Rules of `task=jsonl` and its variants: data sources and row processing."""

from __future__ import annotations

from glob import escape, glob, has_magic
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.python_names import is_code_reference, is_function_path
from ippo_cli.config.schema import DataConfig, has_seed_examples

CHAT_TEMPLATES = ("auto", True, False)
MIX_RESOLUTION = 1000  # prompts over which the weights of sources hold; the smallest possible weight is 1 of these


def is_pattern(source: str) -> bool:
    """Whether a source is a file pattern, such as `data/*.jsonl`."""
    return has_magic(source) and not Path(source).exists()


def expand_pattern(source: str) -> list[str]:
    """The files of a pattern, sorted by name. Leading folders that exist are literal, brackets included."""
    parts = Path(source).parts
    known = next(n for n in range(len(parts) - 1, -1, -1) if not n or Path(*parts[:n]).is_dir())
    place = str(Path(escape(str(Path(*parts[:known]))), *parts[known:])) if known else source
    return sorted(file for file in glob(place, recursive=True) if Path(file).is_file())


def has_splits(source: str) -> bool:
    """Whether a source has splits (folders, datasets); files, patterns and functions are read as a whole."""
    return not (is_code_reference(source) or is_pattern(source) or Path(source).is_file())


def check_data(task: DataConfig, *, training: bool) -> None:
    """Raise `ConfigError` for the first broken rule; `training=False` ignores training data."""
    if task.chat_template not in CHAT_TEMPLATES:
        raise ConfigError(f"task.chat_template={task.chat_template}", "is not known", "use auto, true or false")
    if task.eval_share is not None and task.eval is not None:
        raise ConfigError(
            f"task.eval_share={task.eval_share} task.eval={task.eval}",
            "both define the held-out rows",
            "set task.eval=null, or remove task.eval_share",
        )
    if has_seed_examples(task):
        return
    divided = task.eval_share is not None
    for key in ("train",) if divided else ("train", "eval") if training else ("eval",):
        _check_source(key, getattr(task, key))
    _check_weights(task)
    if task.streaming:
        _check_streaming(task, training=training)
    for name, wanted in task.columns.items():
        listed = wanted if isinstance(wanted, list) else [wanted]
        if not listed or not all(isinstance(path, str) and path for path in listed):
            raise ConfigError(
                f"task.columns.{name}={wanted}", "names no column", f"use task.columns.{name}=COLUMN or [ONE,OTHER]"
            )
    if task.map is not None and ":" not in task.map:
        raise ConfigError(f"task.map={task.map}", "is not a function", "use path/to/file.py:function")
    if task.filter is not None and task.filter.endswith(".py") and not is_function_path(task.filter):
        raise ConfigError(f"task.filter={task.filter}", "names a file without a function", "use file.py:function")


def _check_source(key: str, listed: Any) -> None:
    if listed is None:
        raise ConfigError(
            f"task.{key}=null",
            "names no data",
            f"set task.{key} to a .jsonl or .parquet file, or a hub dataset id",
        )
    if not all(isinstance(name, str) for name in (listed if isinstance(listed, list) else [listed])):
        raise ConfigError(
            f"task.{key}={listed}",
            "is neither a name nor a list of names",
            f"use task.{key}=a.jsonl or task.{key}=[a.jsonl,b.jsonl]",
        )


def _check_weights(task: DataConfig) -> None:
    weights = task.weights
    if weights is None:
        return
    sources = len(task.train) if isinstance(task.train, list) else 1
    numbers = isinstance(weights, list) and all(
        isinstance(weight, int | float) and not isinstance(weight, bool) and 0 < weight < float("inf")
        for weight in weights
    )
    if not numbers or len(weights) != sources or sources < 2:
        raise ConfigError(
            f"task.weights={weights}",
            f"must have a number above 0 for each of at least two sources, and task.train has {sources}",
            "use task.train=[a.jsonl,b.jsonl] task.weights=[2,1]",
        )
    if min(weights) / sum(weights) < 1 / MIX_RESOLUTION:
        raise ConfigError(
            f"task.weights={weights}",
            f"gives a source less than 1 of {MIX_RESOLUTION} prompts",
            "remove that source",
        )
    if task.train_size is not None:
        raise ConfigError(
            f"task.train_size={task.train_size} task.weights={weights}",
            "cannot be used together: the first rows would come from the first sources only",
            "remove task.train_size",
        )


def _check_streaming(task: DataConfig, *, training: bool) -> None:
    if task.eval_share is not None:
        raise ConfigError(
            "task.streaming=true",
            "reads the first rows only, and task.eval_share needs all rows",
            "set task.streaming=false or task.eval_share=null",
        )
    for key in ("train_size", "eval_size") if training else ("eval_size",):
        if getattr(task, key) is None:
            raise ConfigError("task.streaming=true", "needs the number of rows", f"set task.{key}")
