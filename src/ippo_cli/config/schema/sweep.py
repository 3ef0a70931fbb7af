"""`sweep=`: which jobs `ippo-train -m` makes, and how many train at a time. A run itself knows nothing of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from ippo_cli.config.constraints import NonNegativeInt, PositiveInt, Range, Seed
from ippo_cli.config.schema.run import Config


class SweepKind(str, Enum):
    grid = "grid"
    optuna = "optuna"
    population = "population"


@dataclass
class SweepConfig:
    """What all sweeps have."""

    kind: SweepKind  # grid | optuna | population
    at_once: PositiveInt  # jobs that train at a time on this machine, whose cores and GPUs they share


@dataclass
class GridSweepConfig(SweepConfig):
    """Every combination of the values that are typed."""


@dataclass
class SearchSweepConfig(SweepConfig):
    """Jobs that are made up on the way, from how those before them ended."""

    seed: Seed  # of what is drawn; the same sweep again draws the same
    space: dict[str, str]  # by key: interval(LOW, HIGH), int(interval(..)), tag(log, interval(..)), choice(..)


@dataclass
class OptunaSweepConfig(SearchSweepConfig):
    """Optuna's sampler (TPE) draws the values of each job from those of jobs that scored well."""

    trials: PositiveInt  # jobs in all
    startup_trials: NonNegativeInt  # of them, drawn at random; as many must be done before one is pruned
    prune: bool  # save and end a job whose best score lies below the median of earlier jobs at the same iteration
    prune_after: NonNegativeInt  # iterations that every job may train before that


@dataclass
class PopulationSweepConfig(SearchSweepConfig):
    """Members train side by side; after each generation the better ones go on, with one value changed each."""

    members: Annotated[int, Range(2)]  # of each generation
    generations: Annotated[int, Range(2)]  # each has num_iterations/generations iterations
    tournament_size: PositiveInt  # members drawn at random, of which the best becomes a parent
    shrink: Annotated[float, Range(0.0, 1.0, open_low=True, open_high=True)]  # a number is multiplied by this, or
    grow: Annotated[float, Range(1.0, open_low=True)]  # by this; of a choice its neighbour is taken


@dataclass
class Composition(Config):
    """What is composed: a run, and the sweep that it may be a job of."""

    sweep: SweepConfig
