"""Rules of `task=jsonl` and what is made of it: where rows come from, and what is done with them."""

from __future__ import annotations

from glob import escape, glob, has_magic
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.python_names import is_code_reference, is_function_path
from ippo_cli.config.schema import JsonlConfig

CHAT_TEMPLATES = ("auto", True, False)
MIX_RESOLUTION = 1000  # prompts in which every source has its share; a smaller share than one of these cannot be had


def is_pattern(source: str) -> bool:
    """Whether a source of rows is all files of a pattern, such as `data/*.jsonl`."""
    return has_magic(source) and not Path(source).exists()


def expand_pattern(source: str) -> list[str]:
    """The files of a pattern, by name. Leading folders that exist are names, with brackets and all."""
    parts = Path(source).parts
    known = next(n for n in range(len(parts) - 1, -1, -1) if not n or Path(*parts[:n]).is_dir())
    place = str(Path(escape(str(Path(*parts[:known]))), *parts[known:])) if known else source
    return sorted(file for file in glob(place, recursive=True) if Path(file).is_file())


def has_splits(source: str) -> bool:
    """Whether one part of a source is read, as of folders and datasets; of files, patterns and functions it is all."""
    return not (is_code_reference(source) or is_pattern(source) or Path(source).is_file())


def check_data(task: JsonlConfig, *, training: bool) -> None:
    """Raise `ConfigError` for the first rule that is broken; an evaluation needs no training data."""
    if task.chat_template not in CHAT_TEMPLATES:
        raise ConfigError(f"task.chat_template={task.chat_template}", "is not known", "use auto, true or false")
    if task.eval_share is not None and task.eval is not None:
        raise ConfigError(
            f"task.eval_share={task.eval_share} task.eval={task.eval}",
            "both say what is held out",
            "set task.eval=null, or leave task.eval_share out",
        )
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
        raise ConfigError(f"task.map={task.map}", "does not say where and what", "write path/to/file.py:function")
    if task.filter is not None and task.filter.endswith(".py") and not is_function_path(task.filter):
        raise ConfigError(f"task.filter={task.filter}", "names a file, and not what in it", "write file.py:function")


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


def _check_weights(task: JsonlConfig) -> None:
    weights = task.weights
    if weights is None:
        return
    sources = len(task.train) if isinstance(task.train, list) else 1
    numbers = isinstance(weights, list) and all(
        isinstance(one, int | float) and not isinstance(one, bool) and 0 < one < float("inf") for one in weights
    )
    if not numbers or len(weights) != sources or sources < 2:
        raise ConfigError(
            f"task.weights={weights}",
            f"must have a number above 0 for each of several sources, and task.train names {sources}",
            "use task.train=[a.jsonl,b.jsonl] task.weights=[2,1]",
        )
    if min(weights) / sum(weights) < 1 / MIX_RESOLUTION:
        raise ConfigError(
            f"task.weights={weights}",
            f"gives a source less than 1 of {MIX_RESOLUTION} prompts",
            "leave that source out",
        )
    if task.train_size is not None:
        raise ConfigError(
            f"task.train_size={task.train_size} task.weights={weights}",
            "cannot be used together: the first rows would be those of the first sources",
            "leave task.train_size out",
        )


def _check_streaming(task: JsonlConfig, *, training: bool) -> None:
    if task.eval_share is not None:
        raise ConfigError(
            "task.streaming=true", "reads the first rows alone, and task.eval_share all", "leave one of the two out"
        )
    for key in ("train_size", "eval_size") if training else ("eval_size",):
        if getattr(task, key) is None:
            raise ConfigError("task.streaming=true", "needs to know how many rows are wanted", f"set task.{key}")
