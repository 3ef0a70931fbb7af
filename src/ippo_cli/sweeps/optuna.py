"""`sweep=optuna`: Optuna's TPE sampler proposes the values of each job; jobs below the median are pruned.

Values and pruning of a job depend on the seed of the sweep, the number of the job, and the jobs that come at least
`max_parallel` before it; they do not depend on the order in which jobs finish. The study is rebuilt from `sweep.json`.
"""

from __future__ import annotations

import random
import statistics
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import OptunaSweepConfig
from ippo_cli.sweeps.folder import JobRow
from ippo_cli.sweeps.search import FINISHED, final_score, score_curve
from ippo_cli.sweeps.space import Dimension

Curve = Sequence[tuple[int, float]]
Trial = tuple[dict[str, str], float | None]  # values and score; None for jobs that still train


class OptunaSearch:
    """Proposes jobs one at a time, each from the scores of the jobs at least `max_parallel` before it."""

    def __init__(self, config: OptunaSweepConfig, space: Sequence[Dimension], fixed: Sequence[str]) -> None:
        if find_spec("optuna") is None:
            raise ConfigError("sweep=optuna", "needs a package that is not installed", "pip install 'ippo-cli[sweeps]'")
        self.config, self.space, self.fixed = config, space, list(fixed)
        self.total = config.trials
        self._curves: dict[int, Curve] = {}  # cache for completed jobs, whose scores no longer change

    def new_rows(self, folder: Path, rows: Sequence[JobRow]) -> list[JobRow]:
        number = len(rows) + 1
        known = self._rows_before(number, rows)
        if number > self.total or any(row.state not in FINISHED for row in known):
            return []
        trials: list[Trial] = [(self._row_values(row), final_score(folder, row)) for row in known if _has_score(row)]
        trials = [trial for trial in trials if trial[1] is not None]
        trials += [(self._row_values(row), None) for row in rows[len(known) :]]
        values = propose_values(self.space, trials, number, self.config)
        return [JobRow(number, [*self.fixed, *(f"{key}={value}" for key, value in values.items())], "")]

    def unfinished_rows(self, rows: Sequence[JobRow]) -> list[JobRow]:
        return list(rows)

    def prepare_folder(self, folder: Path, row: JobRow, rows: Sequence[JobRow]) -> None:
        pass

    def prune_iteration(self, folder: Path, row: JobRow, rows: Sequence[JobRow]) -> int | None:
        if not self.config.prune:
            return None
        done = [
            other for other in self._rows_before(row.job, rows) if other.state == "done" and other.pruned_at is None
        ]
        for other in done:
            if other.job not in self._curves:
                self._curves[other.job] = score_curve(folder, other)
        return median_prune_iteration(
            score_curve(folder, row), [self._curves[other.job] for other in done], self.config
        )

    def _rows_before(self, number: int, rows: Sequence[JobRow]) -> list[JobRow]:
        """The jobs that job `number` may depend on, in order."""
        return [row for row in rows if row.job <= number - self.config.max_parallel]

    def _row_values(self, row: JobRow) -> dict[str, str]:
        keys = {dimension.key for dimension in self.space}
        parts = (text.partition("=") for text in row.overrides)
        return {key: value for key, _, value in parts if key in keys}


def _has_score(row: JobRow) -> bool:
    return row.state in ("done", "pruned")


def median_prune_iteration(curve: Curve, others: Sequence[Curve], config: OptunaSweepConfig) -> int | None:
    """The first iteration at which the best score so far is below the median score of `others`; None without one.

    At least `startup_trials` others must have a score there. The last iteration is excluded.
    """
    best = float("-inf")
    ends = max((other[-1][0] for other in others if other), default=0)
    for iteration, score in curve:
        best = max(best, score)
        scores = [other_score for other in others if (other_score := dict(other).get(iteration)) is not None]
        enough = len(scores) >= max(config.startup_trials, 1)
        if config.prune_after < iteration < ends and enough and best < statistics.median(scores):
            return iteration
    return None


def propose_values(
    space: Sequence[Dimension], trials: Sequence[Trial], number: int, config: OptunaSweepConfig
) -> dict[str, str]:
    """The values that TPE proposes for job `number`, given the trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = random.Random(f"{config.seed}/optuna/{number}").getrandbits(31)
    distributions = {dimension.key: _distribution(dimension) for dimension in space}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant_liar, which separates parallel jobs, is experimental
        sampler = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=config.startup_trials, constant_liar=config.max_parallel > 1
        )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for values, score in trials:
            study.add_trial(
                optuna.trial.create_trial(
                    state=optuna.trial.TrialState.RUNNING if score is None else optuna.trial.TrialState.COMPLETE,
                    params={dimension.key: _parse_parameter(dimension, values[dimension.key]) for dimension in space},
                    distributions=distributions,
                    value=score,
                )
            )
        params = study.ask(distributions).params
    return {
        dimension.key: str(params[dimension.key])
        if dimension.choices
        else dimension.format_number(params[dimension.key])
        for dimension in space
    }


def _distribution(dimension: Dimension) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if dimension.choices:
        return CategoricalDistribution(dimension.choices)
    if dimension.integer:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _parse_parameter(dimension: Dimension, value: str) -> str | int | float:
    if dimension.choices:
        return value
    return int(value) if dimension.integer else float(value)
