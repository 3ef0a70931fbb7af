"""Selects the iterations to execute again, and where each execution starts and stops."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ippo_cli.config.errors import ConfigError
from ippo_cli.runs.checkpoint_files import find_damage
from ippo_cli.runs.history import hash_file
from ippo_cli.verification.recorded import RecordedRun

INITIAL_WEIGHTS = 0
"""The iteration from which an execution with initial weights starts."""


@dataclass(frozen=True, slots=True)
class Execution:
    """Iterations `first` to `last` are executed from the state after iteration `first - 1`."""

    first: int
    last: int
    targets: Sequence[int]  # the selected iterations among them

    @property
    def base(self) -> int:
        """The iteration of the checkpoint from which it starts; `INITIAL_WEIGHTS` without one."""
        return self.first - 1

    @property
    def count(self) -> int:
        return self.last - self.base


def find_bases(run: RecordedRun) -> list[int]:
    """Iterations of states from which executions can start: intact checkpoints, and the initial weights."""
    found = [INITIAL_WEIGHTS] if _has_initial_weights(run.folder) else []
    return [*found, *(number for number, path in run.checkpoints.items() if _can_start_from(run, number, path))]


def _can_start_from(run: RecordedRun, iteration: int, checkpoint: Path) -> bool:
    """Whether training from a checkpoint repeats what the run did: without optimizers, only if it was resumed there."""
    has_optimizers = any(checkpoint.glob("*/engine_*"))
    was_resumed = any(start.iteration == iteration for start in run.starts)
    return (has_optimizers or was_resumed) and find_damage(checkpoint) is None


def _has_initial_weights(folder: Path) -> bool:
    """Whether the initial models can be loaded: copies in the run, folders with the same files, or hub models."""
    records = list((folder / "initial").glob("*.json"))
    return bool(records) and all(_is_initial_model_available(folder, file) for file in records)


def _is_initial_model_available(folder: Path, record: Path) -> bool:
    try:
        known = json.loads(record.read_text())
        own = folder / "initial" / record.stem
        source = own if own.is_dir() else Path(str(known["model"]))
        return all(hash_file(source / name) == digest for name, digest in known["sha256"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def describe_bases(run: RecordedRun, bases: Sequence[int]) -> str:
    """The iterations that can be executed again, by base: `1 to 80 from the initial weights, 81 to 90 from step 80`."""
    parts = [
        f"{base + 1} to {end} from {'the initial weights' if base == INITIAL_WEIGHTS else f'step {base}'}"
        for base, end in _spans(run, bases)
        if end > base
    ]
    return ", ".join(parts) or "none"


def plan_executions(run: RecordedRun, bases: Sequence[int], targets: Sequence[int], span: int) -> list[Execution]:
    """One execution per base for these iterations, up to the next kept checkpoint if `span` iterations reach it.

    Raises `ConfigError` for an iteration without a base or without a row.
    """
    by_base: dict[int, list[int]] = {}
    for target in sorted(set(targets)):
        below = [base for base in bases if base < target]
        if not below or target > run.last_iteration:
            raise ConfigError(
                f"iterations={target}", "cannot be executed again", f"iterations {describe_bases(run, bases)}"
            )
        by_base.setdefault(below[-1], []).append(target)
    return [_plan_execution(run, base, chosen, span) for base, chosen in by_base.items()]


def _plan_execution(run: RecordedRun, base: int, targets: Sequence[int], span: int) -> Execution:
    last = targets[-1]
    following = next((number for number in run.checkpoints if number >= last), last)
    return Execution(base + 1, following if following - base <= span else last, targets)


def draw_iterations(run: RecordedRun, bases: Sequence[int], count: int, seed: int, span: int) -> list[int]:
    """Draw up to `count` different iterations, uniformly from those that need at most `span` iterations each."""
    candidates = list(_near_iterations(run, bases, span))
    return sorted(random.Random(seed).sample(candidates, min(count, len(candidates))))


def _near_iterations(run: RecordedRun, bases: Sequence[int], span: int) -> Iterator[int]:
    for base, end in _spans(run, bases):
        yield from range(base + 1, min(base + span, end) + 1)


def _spans(run: RecordedRun, bases: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Each base with the last iteration that is executed from it."""
    return zip(bases, [*bases[1:], run.last_iteration][: len(bases)], strict=True)
