"""The example sweeps compose, and the keys of their search spaces exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from ippo_cli.compose.load import build_config, build_sweep_config, compose_node, resolve_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.sweeps import check_sweep, check_sweep_job
from ippo_cli.sweeps.grid import expand_grid
from ippo_cli.sweeps.kinds import build_search
from ippo_cli.sweeps.search import FixedJobs

SCRIPTS = sorted((Path(__file__).parents[2] / "scripts/sweeps").glob("*.sh"))


def overrides(script: Path) -> list[str]:
    """Return the overrides of a script that is called without arguments."""
    text = script.read_text().replace("\\\n", " ")
    [line] = [line for line in text.splitlines() if re.match(r"(\$train -m|sbatch) ", line)]
    arguments = shlex.split(line.partition(" || ")[0])
    words = [word.replace("%a", "1").replace("$name", "seeds") for word in arguments]
    return [word for word in words[1:] if "=" in word and not word.startswith(("-", "resume=", "hydra."))]


def list_no_options(group: str) -> list[str]:
    return []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_example_composes(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ippo_cli.sweeps.optuna.find_spec", lambda name: "installed")
    words = overrides(script)
    sweep_keys = [text for text in words if text.startswith("sweep")]
    job_keys = [text for text in words if text not in sweep_keys]
    sweep = build_sweep_config(compose_node(sweep_keys))
    check_sweep(sweep)
    search = build_search(sweep, job_keys, list_no_options)
    fixed = expand_grid(job_keys, list_no_options)[0] if isinstance(search, FixedJobs) else search.fixed  # type: ignore[attr-defined]
    node = compose_node(fixed)
    for dimension in getattr(search, "space", ()):
        assert OmegaConf.select(node, dimension.key, default="none") != "none", dimension.key
    config = build_config(resolve_config(node))
    check_config(config, 1)
    check_sweep_job(sweep, config)


def test_every_kind_has_an_example() -> None:
    assert [script.stem for script in SCRIPTS] == ["grid", "optuna", "population", "slurm_array"]
