"""Rules of `sweep=` and of its jobs."""

from __future__ import annotations

from ippo_cli.config.batch_sizes import format_divisors
from ippo_cli.config.checks import check_constraints
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, OptunaSweepConfig, PopulationSweepConfig, SweepConfig, SweepKind


def check_sweep(sweep: SweepConfig) -> None:
    """Raise `ConfigError` for the first rule that the sweep breaks, independent of its jobs."""
    check_constraints(sweep, "sweep.")
    if isinstance(sweep, OptunaSweepConfig) and sweep.startup_trials > sweep.trials:
        raise ConfigError(
            f"sweep.startup_trials={sweep.startup_trials}",
            f"is more than sweep.trials={sweep.trials}",
            "use fewer, so that some trials depend on earlier results",
        )
    if isinstance(sweep, PopulationSweepConfig) and sweep.tournament_size > sweep.members:
        raise ConfigError(
            f"sweep.tournament_size={sweep.tournament_size}", f"is more than sweep.members={sweep.members}", "use fewer"
        )


def check_sweep_job(sweep: SweepConfig, config: Config) -> None:
    """Raise `ConfigError` for a job that the sweep does not support."""
    if config.launch.nodes > 1:
        raise ConfigError(
            f"launch.nodes={config.launch.nodes}", "is not supported in sweeps: a job runs on one machine", "remove it"
        )
    if isinstance(sweep, OptunaSweepConfig) and sweep.prune and config.evaluation.every == 0:
        raise ConfigError(
            "sweep.prune=true",
            "compares evaluation scores during training, and evaluation.every=0 has none",
            "use evaluation.every=5, or sweep.prune=false",
        )
    if isinstance(sweep, PopulationSweepConfig):
        _check_generations(sweep, config)


def check_multirun_flag(sweep: SweepConfig) -> None:
    """Raise `ConfigError` for `sweep=` without `-m`."""
    if sweep.kind is not SweepKind.grid or sweep.max_parallel != 1:
        setting = (
            f"sweep={sweep.kind.value}"
            if sweep.kind is not SweepKind.grid
            else f"sweep.max_parallel={sweep.max_parallel}"
        )
        raise ConfigError(setting, "has an effect on sweeps only", "add -m, or remove it")


def _check_generations(sweep: PopulationSweepConfig, config: Config) -> None:
    iterations = config.num_iterations
    if iterations is None:
        raise ConfigError(
            f"num_epochs={config.num_epochs}", "cannot be divided into generations", "use num_iterations instead"
        )
    if iterations % sweep.generations:
        raise ConfigError(
            f"sweep.generations={sweep.generations}",
            f"does not divide num_iterations={iterations}",
            f"use one of {format_divisors(iterations)}",
        )
