"""Filters of runs by values of their configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_folders import write_run

from ippo_cli.catalog.entries import list_runs
from ippo_cli.catalog.filters import parse_filter, select_runs
from ippo_cli.config.errors import ConfigError

DEFAULTS = {"algorithm": "ippo"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_run(tmp_path, "sort", seed=1)
    write_run(tmp_path, "sort-ppo", seed=2, algorithm={"advantage": "group", "gamma": None}, state="failed")
    return tmp_path


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        ([], {"sort", "sort-ppo"}),
        (["name=sort"], {"sort"}),
        (["name=sort*"], {"sort", "sort-ppo"}),
        (["algorithm.advantage=group"], {"sort-ppo"}),
        (["algorithm.gamma=null"], {"sort-ppo"}),
        (["algorithm.gamma=1"], {"sort"}),
        (["seed=1,2"], {"sort", "sort-ppo"}),
        (["seed=1", "state=failed"], set()),
        (["state=failed,done"], {"sort", "sort-ppo"}),
        (["task=sorting"], {"sort", "sort-ppo"}),
        (["algorithm=ippo"], {"sort", "sort-ppo"}),
        (["algorithm=ppo"], set()),
    ],
)
def test_select_runs(texts: list[str], names: set[str], root: Path) -> None:
    found = select_runs(list_runs([root]), [parse_filter(text) for text in texts], DEFAULTS)
    assert {entry.name for entry in found} == names


def test_typed_option_of_a_group(root: Path) -> None:
    (folder,) = (root / "sort-ppo").iterdir()
    (folder / "overrides.json").write_text('["algorithm=grpo"]')
    found = select_runs(list_runs([root]), [parse_filter("algorithm=grpo")], DEFAULTS)
    assert [entry.name for entry in found] == ["sort-ppo"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithm.advantages=gae", r"closest: algorithm\.advantage\)"),
        ("state=broken", "unknown state broken; use one of running done"),
        ("seed=", "is not a filter"),
    ],
)
def test_errors(text: str, message: str, root: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        select_runs(list_runs([root]), [parse_filter(text)], DEFAULTS)
