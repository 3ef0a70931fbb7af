"""`sweep=`: options compose, search spaces name existing keys, and runs do not contain the sweep."""

from __future__ import annotations

from dataclasses import replace

import pytest
from omegaconf import OmegaConf

from ippo_cli.compose.load import (
    build_sweep_config,
    compose_node,
    config_dir,
    load_config,
    resolve_config,
)
from ippo_cli.config import schema
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import OptunaSweepConfig, PopulationSweepConfig, SearchSweepConfig
from ippo_cli.config.sweeps import check_multirun_flag, check_sweep, check_sweep_job

OPTIONS = sorted(file.stem for file in (config_dir() / "sweep").glob("*.yaml"))
MISSING = object()


@pytest.mark.parametrize("option", OPTIONS)
def test_sweep_options_compose(option: str) -> None:
    node = compose_node([f"sweep={option}", "algorithm=ppo"])
    sweep = build_sweep_config(node)
    assert type(sweep) is schema.OPTIONS["sweep"][sweep.kind.value]
    check_sweep(sweep)
    for key in sweep.space if isinstance(sweep, SearchSweepConfig) else ():
        assert OmegaConf.select(node, key, default=MISSING) is not MISSING, key
    assert "sweep" not in resolve_config(node)


def test_sweep_without_multirun_flag() -> None:
    check_multirun_flag(build_sweep_config(compose_node([])))
    with pytest.raises(ConfigError, match=r"^sweep=optuna has an effect on sweeps only; add -m"):
        check_multirun_flag(build_sweep_config(compose_node(["sweep=ppo_learning_rates"])))
    with pytest.raises(ConfigError, match=r"^sweep\.max_parallel=2 has an effect"):
        check_multirun_flag(build_sweep_config(compose_node(["sweep.max_parallel=2"])))


def test_invalid_sweep_settings() -> None:
    optuna, population = (build_sweep_config(compose_node([f"sweep={kind}"])) for kind in ("optuna", "population"))
    assert isinstance(optuna, OptunaSweepConfig)
    assert isinstance(population, PopulationSweepConfig)
    with pytest.raises(ConfigError, match=r"^sweep\.startup_trials=30 is more than sweep\.trials=20"):
        check_sweep(replace(optuna, startup_trials=30))
    with pytest.raises(ConfigError, match=r"^sweep\.tournament_size=5 is more than sweep\.members=4"):
        check_sweep(replace(population, tournament_size=5))
    with pytest.raises(ConfigError, match=r"^sweep\.shrink=1\.0 is out of range"):
        check_sweep(replace(population, shrink=1.0))
    never = load_config(["evaluation.every=0", "num_iterations=7"])
    with pytest.raises(ConfigError, match=r"^sweep\.prune=true compares evaluation scores"):
        check_sweep_job(optuna, never)
    check_sweep_job(replace(optuna, prune=False), never)
    with pytest.raises(ConfigError, match=r"^sweep\.generations=5 does not divide num_iterations=7; use one of 1 7"):
        check_sweep_job(population, never)
    with pytest.raises(ConfigError, match="cannot be divided into generations; use num_iterations instead"):
        check_sweep_job(population, replace(never, num_iterations=None, num_epochs=1.0))


def test_stop_after_beyond_the_end() -> None:
    config = load_config(["num_iterations=7"])
    check_config(replace(config, max_iterations_this_run=7), 1)
    with pytest.raises(ConfigError, match=r"^max_iterations_this_run=8 is never reached with num_iterations=7; "):
        check_config(replace(config, max_iterations_this_run=8), 1)
