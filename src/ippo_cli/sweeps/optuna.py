"""`sweep=optuna`: Optuna proposes the values of each job; those that fall behind the median are ended.

What a job is given, and what it is judged by, is a function of the sweep's seed, the job's number and the jobs up to
`at_once` before it: never of which job happened to end first. The study is rebuilt from the sweep's rows each time.
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
from ippo_cli.sweeps.folder import Row
from ippo_cli.sweeps.search import FINISHED, final_score, judged_curve
from ippo_cli.sweeps.space import Dimension

Curve = Sequence[tuple[int, float]]
Trial = tuple[dict[str, str], float | None]  # values, and how they scored; None where they still train


class OptunaSearch:
    """Jobs one after another, each from how those at least `at_once` before it ended."""

    def __init__(self, config: OptunaSweepConfig, space: Sequence[Dimension], fixed: Sequence[str]) -> None:
        if find_spec("optuna") is None:
            raise ConfigError("sweep=optuna", "needs a package that is not installed", "pip install 'ippo-cli[sweeps]'")
        self.config, self.space, self.fixed = config, space, list(fixed)
        self.total = config.trials
        self._curves: dict[int, Curve] = {}  # of jobs that are done, which stay as they are

    def due(self, folder: Path, rows: Sequence[Row]) -> list[Row]:
        number = len(rows) + 1
        known = self._known(number, rows)
        if number > self.total or any(row.state not in FINISHED for row in known):
            return []
        trials: list[Trial] = [(self._values(row), final_score(folder, row)) for row in known if _scored(row)]
        trials = [trial for trial in trials if trial[1] is not None]
        trials += [(self._values(row), None) for row in rows[len(known) :]]
        values = proposed(self.space, trials, number, self.config)
        return [Row(number, [*self.fixed, *(f"{key}={value}" for key, value in values.items())], "")]

    def unfinished(self, rows: Sequence[Row]) -> list[Row]:
        return list(rows)

    def prepare(self, folder: Path, row: Row, rows: Sequence[Row]) -> None:
        pass

    def hopeless(self, folder: Path, row: Row, rows: Sequence[Row]) -> int | None:
        if not self.config.prune:
            return None
        done = [other for other in self._known(row.job, rows) if other.state == "done" and other.pruned_at is None]
        for other in done:
            if other.job not in self._curves:
                self._curves[other.job] = judged_curve(folder, other)
        return behind(judged_curve(folder, row), [self._curves[other.job] for other in done], self.config)

    def _known(self, number: int, rows: Sequence[Row]) -> list[Row]:
        """The jobs whose end a job may depend on, in their order."""
        return [row for row in rows if row.job <= number - self.config.at_once]

    def _values(self, row: Row) -> dict[str, str]:
        keys = {dimension.key for dimension in self.space}
        parts = (text.partition("=") for text in row.overrides)
        return {key: value for key, _, value in parts if key in keys}


def _scored(row: Row) -> bool:
    return row.state in ("done", "pruned")


def behind(curve: Curve, others: Sequence[Curve], config: OptunaSweepConfig) -> int | None:
    """The first iteration at which the best score so far lies below the median of what others had there.

    As many others as `startup_trials` must have a score there; a last iteration ends anyway.
    """
    best = float("-inf")
    ends = max((other[-1][0] for other in others if other), default=0)
    for at, score in curve:
        best = max(best, score)
        scores = [there for other in others if (there := dict(other).get(at)) is not None]
        enough = len(scores) >= max(config.startup_trials, 1)
        if config.prune_after < at < ends and enough and best < statistics.median(scores):
            return at
    return None


def proposed(
    space: Sequence[Dimension], trials: Sequence[Trial], number: int, config: OptunaSweepConfig
) -> dict[str, str]:
    """The values of the job of that number, after these trials."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = random.Random(f"{config.seed}/optuna/{number}").getrandbits(31)
    distributions = {dimension.key: _distribution(dimension) for dimension in space}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant_liar, which keeps jobs that train side by side apart, is called new
        sampler = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=config.startup_trials, constant_liar=config.at_once > 1
        )
        study = optuna.create_study(direction="maximize", sampler=sampler)
        for values, score in trials:
            study.add_trial(
                optuna.trial.create_trial(
                    state=optuna.trial.TrialState.RUNNING if score is None else optuna.trial.TrialState.COMPLETE,
                    params={dimension.key: _parameter(dimension, values[dimension.key]) for dimension in space},
                    distributions=distributions,
                    value=score,
                )
            )
        drawn = study.ask(distributions).params
    return {
        dimension.key: str(drawn[dimension.key]) if dimension.choices else dimension.text(drawn[dimension.key])
        for dimension in space
    }


def _distribution(dimension: Dimension) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if dimension.choices:
        return CategoricalDistribution(dimension.choices)
    if dimension.integer:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.log)


def _parameter(dimension: Dimension, value: str) -> str | int | float:
    if dimension.choices:
        return value
    return int(value) if dimension.integer else float(value)
