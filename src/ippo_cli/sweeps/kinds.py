"""Builds the search for each `sweep=` option, and applies settings of the sweep to its jobs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from ippo_cli.compose.diagnose import config_groups
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, OptunaSweepConfig, PopulationSweepConfig, SearchSweepConfig, SweepConfig
from ippo_cli.engine.launchers import cores_per_rank
from ippo_cli.sweeps.folder import THREADS_KEY, JobRow
from ippo_cli.sweeps.optuna import OptunaSearch
from ippo_cli.sweeps.population import PopulationSearch, check_adaptive_values
from ippo_cli.sweeps.search import FixedJobs, Search
from ippo_cli.sweeps.space import parse_space


def build_search(sweep: SweepConfig, overrides: Sequence[str], options: Callable[[str], list[str]]) -> Search:
    """The search that generates the jobs of a sweep. `options` returns the options of a group, for globs.

    Raises `ConfigError` if a search has no space.
    """
    if not isinstance(sweep, SearchSweepConfig):
        return FixedJobs()
    space, fixed = parse_space(sweep.space, overrides, options)
    if not space:
        raise ConfigError(
            f"sweep={sweep.kind.value}",
            "has nothing to search over",
            "add a space, such as 'actor.learning_rate=tag(log, interval(1e-5, 1e-3))', or use an option that has one",
        )
    if isinstance(sweep, PopulationSweepConfig):
        return PopulationSearch(sweep, space, fixed, list(config_groups()))
    assert isinstance(sweep, OptunaSweepConfig)
    return OptunaSearch(sweep, space, fixed)


def apply_sweep_settings(
    sweep: SweepConfig, row: JobRow, plain: dict[str, Any], config: Config, *, begun: bool
) -> None:
    """Set in the row and configuration of a job what the sweep determines: threads, and the end of a generation."""
    if sweep.max_parallel > 1 and not begun and config.launch.threads is None:
        row.threads = max(cores_per_rank(os.environ, config.launch.processes) // sweep.max_parallel, 1)
        _add_override(row, plain, THREADS_KEY, row.threads)
    if isinstance(sweep, PopulationSweepConfig):
        check_adaptive_values(row, config)
        assert config.num_iterations is not None
        _add_override(
            row, plain, "max_iterations_this_run", config.num_iterations // sweep.generations * (row.generation or 1)
        )


def _add_override(row: JobRow, plain: dict[str, Any], key: str, value: int) -> None:
    """Set an override in the row of a job and its value in the configuration."""
    row.overrides = [*(text for text in row.overrides if not text.startswith(f"{key}=")), f"{key}={value}"]
    *above, leaf = key.split(".")
    for part in above:
        plain = plain[part]
    plain[leaf] = value
