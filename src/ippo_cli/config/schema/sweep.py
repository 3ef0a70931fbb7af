"""`sweep=`: the jobs of `ippo-train -m`, and how many run in parallel; not part of a run's configuration."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from ippo_cli.config.constraints import NonNegativeInt, PositiveInt, Range, Seed
from ippo_cli.config.schema.registry import option
from ippo_cli.config.schema.run import Config


class SweepKind(str, Enum):
    grid = "grid"
    optuna = "optuna"
    population = "population"


@dataclass
class SweepConfig:
    """Keys of all sweeps."""

    kind: SweepKind  # grid | optuna | population
    max_parallel: PositiveInt  # parallel jobs on this machine; they share its cores and GPUs


@option("sweep", "grid")
@dataclass
class GridSweepConfig(SweepConfig):
    """Every combination of the given values."""


@dataclass
class SearchSweepConfig(SweepConfig):
    """Jobs that depend on the results of earlier jobs."""

    seed: Seed  # seed of the search; the same seed proposes the same values
    space: dict[str, str]  # by key: interval(LOW, HIGH), int(interval(..)), tag(log, interval(..)), choice(..)


@option("sweep", "optuna")
@dataclass
class OptunaSweepConfig(SearchSweepConfig):
    """Optuna's TPE sampler proposes the values of each job from the results of earlier jobs."""

    trials: PositiveInt  # number of jobs
    startup_trials: NonNegativeInt  # jobs with random values first; pruning starts when they are done
    prune: bool  # save and stop a job if its best score is below the median of earlier jobs at the same iteration
    prune_after: NonNegativeInt  # iterations before a job may be pruned


@option("sweep", "population")
@dataclass
class PopulationSweepConfig(SearchSweepConfig):
    """Population-based training: after each generation the better members continue, with one value changed each."""

    members: Annotated[int, Range(2)]  # members per generation
    generations: Annotated[int, Range(2)]  # generations of num_iterations/generations iterations each
    tournament_size: PositiveInt  # members sampled per tournament; the best becomes a parent
    shrink: Annotated[float, Range(0.0, 1.0, open_low=True, open_high=True)]  # factor that lowers a number
    grow: Annotated[float, Range(1.0, open_low=True)]  # factor that raises a number; a choice moves to a neighbour


@option("config")
@dataclass
class Composition(Config):
    """The composed configuration: a run and its sweep."""

    sweep: SweepConfig
