"""The example sweeps: what they type composes, and has the keys that it searches over."""

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
    """What a script types, as it would type it with nothing behind it."""
    text = script.read_text().replace("\\\n", " ")
    [line] = [line for line in text.splitlines() if re.match(r"(\$train -m|sbatch) ", line)]
    typed_words = shlex.split(line.partition(" || ")[0])
    words = [word.replace("%a", "1").replace("$name", "seeds") for word in typed_words]
    return [word for word in words[1:] if "=" in word and not word.startswith(("-", "resume=", "hydra."))]


def no_options(group: str) -> list[str]:
    return []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example_composes(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ippo_cli.sweeps.optuna.find_spec", lambda name: "there")
    typed_now = overrides(script)
    of_sweep = [text for text in typed_now if text.startswith("sweep")]
    of_jobs = [text for text in typed_now if text not in of_sweep]
    sweep = build_sweep_config(compose_node(of_sweep))
    check_sweep(sweep)
    search = build_search(sweep, of_jobs, no_options)
    fixed = expand_grid(of_jobs, no_options)[0] if isinstance(search, FixedJobs) else search.fixed  # type: ignore[attr-defined]
    node = compose_node(fixed)
    for dimension in getattr(search, "space", ()):
        assert OmegaConf.select(node, dimension.key, default="none") != "none", dimension.key
    config = build_config(resolve_config(node))
    check_config(config, 1)
    check_sweep_job(sweep, config)


def test_there_is_an_example_of_each_kind() -> None:
    assert [script.stem for script in SCRIPTS] == ["grid", "optuna", "population", "slurm_array"]
