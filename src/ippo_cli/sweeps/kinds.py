"""What a kind of sweep means: what makes up its jobs, and what each job has of it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ippo_cli.compose.diagnose import groups
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, OptunaSweepConfig, PopulationSweepConfig, SearchConfig, SweepConfig
from ippo_cli.engine.launchers import cores_per_rank
from ippo_cli.sweeps.folder import THREADS, Row
from ippo_cli.sweeps.optuna import OptunaSearch
from ippo_cli.sweeps.population import PopulationSearch, refuse_adapting
from ippo_cli.sweeps.search import Listed, Search
from ippo_cli.sweeps.space import dimensions


def search_of(sweep: SweepConfig, overrides: Sequence[str], options: Callable[[str], list[str]]) -> Search:
    """What makes up the jobs of a sweep that is typed with these overrides; `options` are those of a group."""
    if not isinstance(sweep, SearchConfig):
        return Listed()
    space, fixed = dimensions(sweep.space, overrides, options)
    if not space:
        raise ConfigError(
            f"sweep={sweep.kind.value}",
            "has nothing to search over",
            "type a space, such as 'actor.learning_rate=tag(log, interval(1e-5, 1e-3))', or use an option that has one",
        )
    if isinstance(sweep, PopulationSweepConfig):
        return PopulationSearch(sweep, space, fixed, list(groups()))
    assert isinstance(sweep, OptunaSweepConfig)
    return OptunaSearch(sweep, space, fixed)


def fit_into(sweep: SweepConfig, row: Row, plain: dict[str, Any], config: Config, *, begun: bool) -> None:
    """Give a job, its row and its values, what follows from the sweep: a share of the cores, a generation's end."""
    if sweep.at_once > 1 and not begun and config.launch.threads is None:
        row.threads = max(cores_per_rank(os.environ, config.launch.processes) // sweep.at_once, 1)
        _set(row, plain, THREADS, row.threads)
    if isinstance(sweep, PopulationSweepConfig):
        refuse_adapting(row, config)
        assert config.num_iterations is not None
        _set(row, plain, "stop_after", config.num_iterations // sweep.generations * (row.generation or 1))


def _set(row: Row, plain: dict[str, Any], key: str, value: int) -> None:
    """One more override of a job."""
    row.overrides = [*(text for text in row.overrides if not text.startswith(f"{key}=")), f"{key}={value}"]
    *above, leaf = key.split(".")
    for part in above:
        plain = plain[part]
    plain[leaf] = value
