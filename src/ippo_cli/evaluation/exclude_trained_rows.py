"""Excludes held-out rows that another run was trained on: generated tasks split their rows by the seed of the run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ippo_cli.config.errors import PreflightError
from ippo_cli.config.schema import (
    Config,
    GridConfig,
    LadderConfig,
    LettersConfig,
    RelayConfig,
    SortingConfig,
    TaskConfig,
)
from ippo_cli.tasks.task import make_examples
from ippo_cli.types import Example

# Tasks that split a small set of rows into training and held-out rows by seed. Environments of runs with different
# seeds share no seeds; signalling evaluates on training signals; overlap of files is checked earlier.
SEED_SPLIT_TASKS = (SortingConfig, LettersConfig, GridConfig, RelayConfig, LadderConfig)


def exclude_trained_rows(task: TaskConfig, held_out: Sequence[Example], runs: Mapping[Path, Config]) -> list[int]:
    """The indices of held-out rows that no run was trained on. `runs`: training configurations by folder.

    Raises `PreflightError` if no row is left.
    """
    places = list(range(len(held_out)))
    if not isinstance(task, SEED_SPLIT_TASKS):
        return places
    names = list(_row_keys(held_out)) if runs else []
    for folder, trained in runs.items():
        if trained.task.kind != task.kind:
            continue
        rows = set(_row_keys(make_examples(trained.task, trained.seed)[0]))
        places = [place for place in places if names[place] not in rows]
        if not places:
            raise PreflightError(
                f"run={folder}: the runs were trained on every held-out row of the first one (task.kind="
                f"{task.kind} divides its rows by seed, here seed={trained.seed}); compare runs of one seed, or "
                "of a task with far more rows than runs are trained on"
            )
    return places


def _row_keys(rows: Iterable[Example]) -> Iterable[str]:
    return (json.dumps(row, sort_keys=True, default=str) for row in rows)
