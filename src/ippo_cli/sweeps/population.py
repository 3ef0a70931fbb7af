"""`sweep=population`: members train side by side, and after each generation the better ones' runs are gone on with.

A member of a later generation is the run of its parent, copied and resumed with another value: weights, optimizers,
data order and schedules go on as if nothing had happened.
"""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from ippo_cli.compose.resume import is_frozen
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, PopulationSweepConfig
from ippo_cli.runs.folder import all_checkpoints
from ippo_cli.sweeps.folder import Row
from ippo_cli.sweeps.lineage import inherit
from ippo_cli.sweeps.search import FINISHED, final_score
from ippo_cli.sweeps.space import Dimension

# What decides when a run ends or where it lies, and is set here or means nothing once it goes on.
NOT_CHANGED = ("num_iterations", "num_epochs", "stop_after", "name", "output_dir", "mode", "resume", "launch.", "plan.")


class PopulationSearch:
    """Generations of members; the history of who came from whom is in the rows."""

    def __init__(
        self,
        config: PopulationSweepConfig,
        space: Sequence[Dimension],
        fixed: Sequence[str],
        groups: Sequence[str],
    ) -> None:
        for dimension in space:
            refuse_unchangeable(dimension.key, groups)
        for text in fixed:
            if text.startswith("stop_after="):
                raise ConfigError(text, "is what ends a generation", "leave it out, and choose sweep.generations")
        self.config, self.space, self.fixed = config, space, list(fixed)
        self.total = config.members * config.generations

    def due(self, folder: Path, rows: Sequence[Row]) -> list[Row]:
        done, begun = divmod(len(rows), self.config.members)
        last = rows[-self.config.members :]
        if begun or done == self.config.generations or any(row.state not in FINISHED for row in last):
            return []
        if not rows:
            return [self._row(1, member, None, self._drawn(member)) for member in range(1, self.config.members + 1)]
        scores = [final_score(folder, row) for row in last]
        if all(score is None for score in scores):
            return []
        return self._next(done + 1, last, [-math.inf if score is None else score for score in scores])

    def unfinished(self, rows: Sequence[Row]) -> list[Row]:
        newest = max((row.generation or 1 for row in rows), default=1)
        return [row for row in rows if row.generation == newest]  # an earlier one's successors are there

    def prepare(self, folder: Path, row: Row, rows: Sequence[Row]) -> None:
        parent = next((other for other in rows if other.job == row.parent), None)
        if parent is not None:
            inherit(folder / parent.folder, folder / row.folder)
            self._make_room(folder, row, rows)

    def hopeless(self, folder: Path, row: Row, rows: Sequence[Row]) -> int | None:
        return None

    def _drawn(self, member: int) -> dict[str, str]:
        source = random.Random(f"{self.config.seed}/population/{member}")
        return {dimension.key: dimension.drawn(source) for dimension in self.space}

    def _next(self, generation: int, parents: Sequence[Row], scores: Sequence[float]) -> list[Row]:
        """The best member as it is, then winners of tournaments, each with one value changed."""
        rows = []
        for member in range(1, self.config.members + 1):
            source = random.Random(f"{self.config.seed}/generation/{generation}/{member}")
            winner = parents[winner_of(scores, len(scores) if member == 1 else self.config.tournament_size, source)]
            values = self._values(winner)
            if member > 1:
                values = mutated(self.space, values, self.config, source)
            rows.append(self._row(generation, member, winner.job, values))
        return rows

    def _values(self, row: Row) -> dict[str, str]:
        keys = {dimension.key for dimension in self.space}
        parts = (text.partition("=") for text in row.overrides)
        return {key: value for key, _, value in parts if key in keys}

    def _row(self, generation: int, member: int, parent: int | None, values: dict[str, str]) -> Row:
        texts = [*self.fixed, *(f"{key}={value}" for key, value in values.items())]
        number = (generation - 1) * self.config.members + member
        return Row(number, texts, "", generation=generation, member=member, parent=parent)

    def _make_room(self, folder: Path, row: Row, rows: Sequence[Row]) -> None:
        """Checkpoints of generations before the last one are removed, but those of the best member so far."""
        scores = [(score, other.job) for other in rows if (score := final_score(folder, other)) is not None]
        best = max(scores, key=lambda scored: scored[0])[1] if scores else None
        for other in rows:
            if (other.generation or 1) < (row.generation or 1) - 1 and other.job != best:
                for checkpoint in all_checkpoints(folder / other.folder / "checkpoints"):
                    doomed = checkpoint.rename(checkpoint.with_name(checkpoint.name + ".tmp"))  # never half of one
                    shutil.rmtree(doomed)


def winner_of(scores: Sequence[float], size: int, source: random.Random) -> int:
    """The place of the best of `size` members that are drawn; of equal ones the first. Who failed is not drawn."""
    scored = [place for place, score in enumerate(scores) if math.isfinite(score)]
    drawn = sorted(source.sample(scored, min(size, len(scored))))
    return max(drawn, key=lambda place: scores[place])


def mutated(
    space: Sequence[Dimension], values: dict[str, str], config: PopulationSweepConfig, source: random.Random
) -> dict[str, str]:
    """The values with one of them changed; at an end of its range it turns back."""
    dimension = source.choice(list(space))
    factors = [config.shrink, config.grow]
    source.shuffle(factors)
    before = values[dimension.key]
    moves = [dimension.moved(before, factor) for factor in factors]
    return values | {dimension.key: next((value for value in moves if value != before), before)}


def refuse_unchangeable(key: str, groups: Sequence[str]) -> None:
    """Raise `ConfigError` for a key that cannot be another one when a run goes on."""
    if key in groups or is_frozen(key) or key.startswith(NOT_CHANGED):
        raise ConfigError(
            f"sweep.space.{key}" if key not in groups else key,
            "cannot change while a run goes on, as the members of a population do",
            "leave it out, or use sweep=optuna, whose jobs are runs of their own",
        )


def refuse_adapting(row: Row, config: Config) -> None:
    """Raise `ConfigError` where a member changes a value that a run which goes on has adapted by itself."""
    key = "algorithm.kl.reward.coef"
    if config.algorithm.kl.reward.target is not None and any(text.startswith(f"{key}=") for text in row.overrides):
        raise ConfigError(
            key,
            "says only where the coefficient begins, as algorithm.kl.reward.target is set",
            "search over algorithm.kl.reward.target",
        )
