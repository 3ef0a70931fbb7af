"""Code of installed packages: entry points of each group are values of the keys, and wrong names get the nearest."""

from __future__ import annotations

from pathlib import Path

import pytest

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.doors import CODE_CHOICES, DOORS
from ippo_cli.config.errors import ConfigError
from ippo_cli.user_code.load import load_function

GROUPS = sorted({door.group for door in DOORS.values()})


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with an entry point `soft_one` in each group."""
    (tmp_path / "my_package_of_doors.py").write_text("def return_one(*arguments):\n    return 1\n")
    info = tmp_path / "my_package_of_doors-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package_of_doors\nVersion: 1.0\n")
    names = "soft_one = my_package_of_doors:return_one\nlost_one = my_package_of_doors:two\n"
    points = (f"[{group}]\n{names}" for group in GROUPS)
    (info / "entry_points.txt").write_text("\n".join(points))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_groups_are_those_of_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "extend.md").read_text()
    assert [group for group in GROUPS if f"`{group}`" not in page] == []
    assert len(GROUPS) == 6


@pytest.mark.parametrize("key", DOORS)
def test_entry_point_is_loaded(key: str) -> None:
    assert load_function("soft_one", key)() == 1


@pytest.mark.parametrize("key", DOORS)
def test_wrong_name_gets_the_nearest(key: str) -> None:
    with pytest.raises(ConfigError, match=r"=sof_one is not an entry point of ippo\.\w+; did you mean soft_one"):
        load_function("sof_one", key)
    with pytest.raises(ConfigError, match=r"=lost_one cannot be imported \(.*two"):
        load_function("lost_one", key)


@pytest.mark.parametrize("group", CODE_CHOICES)
def test_entry_point_is_an_option_of_its_group(group: str) -> None:
    key, door = CODE_CHOICES[group]
    assert normalize_arguments([f"{group}=soft_one"]) == [f"{group}={door.option}", f"{key}=soft_one"]


def test_entry_points_are_values_of_keys() -> None:
    check_config(load_config(["algorithm=ppo", "algorithm.objective=soft_one", "algorithm.advantage=soft_one"]), 1)
    with pytest.raises(ConfigError, match=r"advantage=sof_one is not known; did you mean soft_one.*\? use one of gae"):
        check_config(load_config(["algorithm.advantage=sof_one"]), 1)


def test_own_options_come_first() -> None:
    assert normalize_arguments(["reward=math"]) == ["reward=math"]


def test_code_and_options_in_one_sweep() -> None:
    assert normalize_arguments(["rollout=a.py:One,b.py:Two"]) == ["rollout=engine", "rollout.engine=a.py:One,b.py:Two"]
    assert normalize_arguments(["rollout=hf,a.py:One"]) == ["rollout=hf,a.py:One"]
    with pytest.raises(ConfigError, match="has several trackers of yours; write one that calls the others"):
        normalize_arguments(["tracker=[a.py:One,b.py:Two]"])
