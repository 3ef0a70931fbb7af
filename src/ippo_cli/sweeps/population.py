"""`sweep=population`: population based training; after each generation, members resume the runs of better members.

A member of a later generation is a copy of its parent's run, resumed with one changed value: weights, optimizers,
data order and schedules continue exactly.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from ippo_cli.compose.resume import is_frozen_key
from ippo_cli.config.errors import ConfigError, ResumeError, convert_storage_errors
from ippo_cli.config.schema import Config, PopulationSweepConfig
from ippo_cli.runs.folder import (
    JOB_FILE,
    PARENT,
    PENDING_SUFFIX,
    RUN_LOCK,
    START_LOCK,
    TRACKER_ID,
    list_checkpoints,
    write_atomically,
)
from ippo_cli.runs.run_files import read_state_file
from ippo_cli.sweeps.folder import JobRow
from ippo_cli.sweeps.search import FINISHED, final_score
from ippo_cli.sweeps.space import Dimension

# Keys of the length or place of a run: they are set by the sweep, or have no effect on a resumed run.
UNCHANGEABLE_KEYS = (
    "num_iterations",
    "num_epochs",
    "max_iterations_this_run",
    "name",
    "output_dir",
    "mode",
    "resume",
    "launch.",
    "plan.",
)


class PopulationSearch:
    """Generates the members of each generation from the scores of the last; parents are recorded in the rows."""

    def __init__(
        self,
        config: PopulationSweepConfig,
        space: Sequence[Dimension],
        fixed: Sequence[str],
        groups: Sequence[str],
    ) -> None:
        for dimension in space:
            check_changeable_key(dimension.key, groups)
        for text in fixed:
            if text.startswith("max_iterations_this_run="):
                raise ConfigError(
                    text, "is set by the sweep at the end of each generation", "remove it, and set sweep.generations"
                )
        self.config, self.space, self.fixed = config, space, list(fixed)
        self.total = config.members * config.generations

    def new_rows(self, folder: Path, rows: Sequence[JobRow]) -> list[JobRow]:
        done, begun = divmod(len(rows), self.config.members)
        last = rows[-self.config.members :]
        if begun or done == self.config.generations or any(row.state not in FINISHED for row in last):
            return []
        if not rows:
            return [
                self._build_row(1, member, None, self._sample_values(member))
                for member in range(1, self.config.members + 1)
            ]
        scores = [final_score(folder, row) for row in last]
        if all(score is None for score in scores):
            return []
        return self._next_generation(done + 1, last, [-math.inf if score is None else score for score in scores])

    def unfinished_rows(self, rows: Sequence[JobRow]) -> list[JobRow]:
        newest = max((row.generation or 1 for row in rows), default=1)
        return [row for row in rows if row.generation == newest]  # earlier generations already have successors

    def prepare_folder(self, folder: Path, row: JobRow, rows: Sequence[JobRow]) -> None:
        parent = next((other for other in rows if other.job == row.parent), None)
        if parent is not None:
            copy_parent_run(folder / parent.folder, folder / row.folder)
            self._remove_old_checkpoints(folder, row, rows)

    def prune_iteration(self, folder: Path, row: JobRow, rows: Sequence[JobRow]) -> int | None:
        return None

    def _sample_values(self, member: int) -> dict[str, str]:
        source = random.Random(f"{self.config.seed}/population/{member}")
        return {dimension.key: dimension.sample(source) for dimension in self.space}

    def _next_generation(self, generation: int, parents: Sequence[JobRow], scores: Sequence[float]) -> list[JobRow]:
        """The rows of a generation: the unchanged best member, then tournament winners with one changed value each."""
        rows = []
        for member in range(1, self.config.members + 1):
            source = random.Random(f"{self.config.seed}/generation/{generation}/{member}")
            winner = parents[
                tournament_winner(scores, len(scores) if member == 1 else self.config.tournament_size, source)
            ]
            values = self._row_values(winner)
            if member > 1:
                values = mutate_values(self.space, values, self.config, source)
            rows.append(self._build_row(generation, member, winner.job, values))
        return rows

    def _row_values(self, row: JobRow) -> dict[str, str]:
        keys = {dimension.key for dimension in self.space}
        parts = (text.partition("=") for text in row.overrides)
        return {key: value for key, _, value in parts if key in keys}

    def _build_row(self, generation: int, member: int, parent: int | None, values: dict[str, str]) -> JobRow:
        texts = [*self.fixed, *(f"{key}={value}" for key, value in values.items())]
        number = (generation - 1) * self.config.members + member
        return JobRow(number, texts, "", generation=generation, member=member, parent=parent)

    def _remove_old_checkpoints(self, folder: Path, row: JobRow, rows: Sequence[JobRow]) -> None:
        """Remove checkpoints of generations before the parents' one, except those of the best member so far."""
        scores = [(score, other.job) for other in rows if (score := final_score(folder, other)) is not None]
        best = max(scores, key=lambda scored: scored[0])[1] if scores else None
        for other in rows:
            if (other.generation or 1) < (row.generation or 1) - 1 and other.job != best:
                for checkpoint in list_checkpoints(folder / other.folder / "checkpoints"):
                    doomed = checkpoint.rename(
                        checkpoint.with_name(checkpoint.name + ".tmp")
                    )  # so that no partly deleted checkpoint is read
                    shutil.rmtree(doomed)


def tournament_winner(scores: Sequence[float], size: int, source: random.Random) -> int:
    """The index of the best of `size` sampled members, the first of equal ones; failed members are not sampled."""
    scored = [place for place, score in enumerate(scores) if math.isfinite(score)]
    sampled = sorted(source.sample(scored, min(size, len(scored))))
    return max(sampled, key=lambda place: scores[place])


def mutate_values(
    space: Sequence[Dimension], values: dict[str, str], config: PopulationSweepConfig, source: random.Random
) -> dict[str, str]:
    """The values with one random value changed by `shrink` or `grow`; at an end of its range in the other direction."""
    dimension = source.choice(list(space))
    factors = [config.shrink, config.grow]
    source.shuffle(factors)
    before = values[dimension.key]
    moves = [dimension.step_value(before, factor) for factor in factors]
    return values | {dimension.key: next((value for value in moves if value != before), before)}


def check_changeable_key(key: str, groups: Sequence[str]) -> None:
    """Raise `ConfigError` for a key that cannot change when a run is resumed."""
    if key in groups or is_frozen_key(key) or key.startswith(UNCHANGEABLE_KEYS):
        raise ConfigError(
            f"sweep.space.{key}" if key not in groups else key,
            "cannot change when a run is resumed, and members of a population resume the runs of their parents",
            "remove it, or use sweep=optuna, which trains each job from the start",
        )


def check_adaptive_values(row: JobRow, config: Config) -> None:
    """Raise `ConfigError` if a member changes a value that training adapts, so that a resumed run ignores it."""
    key = "algorithm.kl.reward.coef"
    if config.algorithm.kl.reward.target is not None and any(text.startswith(f"{key}=") for text in row.overrides):
        raise ConfigError(
            key,
            "is only the initial coefficient, because algorithm.kl.reward.target is set",
            "search over algorithm.kl.reward.target",
        )


EXCLUDED_FILES = (
    RUN_LOCK,
    START_LOCK,
    JOB_FILE,
    "logs",
    "tb",
    "wandb",
    TRACKER_ID,
    "samples",
    "evaluations",
    "profile",
    "report.html",
    "verification.json",  # certifies the parent alone
)  # files that belong to one run only


def copy_parent_run(parent: Path, child: Path) -> None:
    """Create the folder of a run that resumes from the newest checkpoint of `parent`; keep one that has a checkpoint.

    Files of checkpoints and initial weights are never modified, so that they are hard links where the file system
    supports them. Raises `ResumeError` if the parent has no checkpoint.
    """
    if list_checkpoints(child / "checkpoints"):
        return
    if not list_checkpoints(parent / "checkpoints"):
        raise ResumeError(f"{parent} has no checkpoint from which {child.name} could start")
    partial = child.with_name(f".{child.name}.partial")
    with convert_storage_errors(str(child)):
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(child, ignore_errors=True)  # of an attempt without a checkpoint
        partial.mkdir(parents=True)
        for entry in parent.iterdir():
            if entry.name in EXCLUDED_FILES or entry.name.endswith((".tmp", PENDING_SUFFIX)):
                continue
            if entry.is_dir():
                shutil.copytree(
                    entry,
                    partial / entry.name,
                    copy_function=_link,
                    ignore=shutil.ignore_patterns("*.tmp", "*.partial"),
                )
            else:
                shutil.copy2(entry, partial / entry.name)
        newest = int(list_checkpoints(parent / "checkpoints")[-1].name.removeprefix("step_"))
        write_atomically(partial / PARENT, json.dumps({"run": parent.name, "iteration": newest}) + "\n")
        known = read_state_file(parent).value
        write_atomically(partial / "run.json", json.dumps(known | {"state": "preempted"}, indent=1) + "\n")
        partial.rename(child)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # the file system has no hard links
        shutil.copy2(source, target)
