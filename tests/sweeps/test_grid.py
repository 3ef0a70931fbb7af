"""The jobs that `-m` generates from lists of values."""

from __future__ import annotations

from pathlib import Path

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.sweeps.grid import expand_grid

OPTIONS = {"algorithm": ["comlrl_ippo", "grpo", "ippo", "pf_ppo", "ppo"]}


def jobs(*overrides: str) -> list[list[str]]:
    return expand_grid(overrides, lambda group: OPTIONS.get(group, []))


def values(override: str) -> list[str]:
    return [job[0].partition("=")[2] for job in jobs(override)]


@pytest.mark.parametrize(
    ("override", "listed"),
    [
        ("seed=range(1,4)", ["1", "2", "3"]),
        ("seed=choice(5,7)", ["5", "7"]),
        ("algorithm=glob(*)", OPTIONS["algorithm"]),
        ("algorithm=glob(*ppo*,exclude=comlrl*)", ["ippo", "pf_ppo", "ppo"]),
        ("+experiment=a,b", ["a", "b"]),
        ("name='a b','c,d'", ["'a b'", "'c,d'"]),
        ("seed=3", ["3"]),
        (r"name=a\,b,c", ["'a,b'", "c"]),
        ("algorithm.kl.target=null,0.1", ["null", "0.1"]),
        ("task.train=[a,b],[c]", ["['a','b']", "['c']"]),
    ],
)
def test_expand_sweep_syntax(override: str, listed: list[str]) -> None:
    assert values(override) == listed


def test_last_override_varies_fastest() -> None:
    assert jobs("seed=1,2", "num_iterations=4", "algorithm=ppo,ippo") == [
        ["seed=1", "num_iterations=4", "algorithm=ppo"],
        ["seed=1", "num_iterations=4", "algorithm=ippo"],
        ["seed=2", "num_iterations=4", "algorithm=ppo"],
        ["seed=2", "num_iterations=4", "algorithm=ippo"],
    ]


def test_swept_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).touch()
    (tmp_path / "reward.py").touch()
    assert values("reward.function=reward.py:one,reward.py:two") == [
        f"{tmp_path}/reward.py:one",
        f"{tmp_path}/reward.py:two",
    ]
    assert values("task.train=a.jsonl,b.jsonl") == [f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl"]


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("actor.learning_rate=interval(1e-5,1e-3)", "is an interval, and a grid .*; list the values, or use a sweep"),
        ("algorithm=glob(x*)", "matches no option; choose from comlrl_ippo grpo"),
        ("seed=glob(*)", "matches no option; seed is not a group of options"),
        ("seed=range(3,3)", "has no value; list at least one value"),
    ],
)
def test_override_without_values_rejected(override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        jobs(override)


@pytest.mark.parametrize("override", ["seed=1,2,1", "seed=choice(1,2,1)"])
def test_duplicate_values_rejected(override: str) -> None:
    with pytest.raises(ConfigError, match="more than once; list it once"):
        jobs(override)
