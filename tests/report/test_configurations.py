"""Configurations of several runs: grouping over seeds, labels, means and paired differences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from ippo_cli.report.configurations import (
    differing_keys,
    flatten_config,
    group_runs,
    mean_value,
    paired_differences,
)
from ippo_cli.runs.intervals import t_quantile
from ippo_cli.runs.records import RunRecord


def make_run(
    folder: Path,
    seed: int,
    score: float | None,
    *,
    state: str = "done",
    overrides: tuple[str, ...] = (),
    config: Mapping[str, Any] | None = None,
) -> RunRecord:
    folder.mkdir()
    evaluation = {} if score is None else {"last": {"iteration": 9, "score": score, "greedy/exact": score / 2}}
    (folder / "run.json").write_text(json.dumps({"state": state, "evaluation": evaluation}))
    (folder / "config.yaml").write_text(yaml.safe_dump({"seed": seed, "output_dir": str(folder), **(config or {})}))
    (folder / "overrides.json").write_text(json.dumps([f"seed={seed}", *overrides]))
    return RunRecord(folder)


def test_nested_keys_are_joined() -> None:
    assert flatten_config({"a": {"b": 1, "c": {}}, "d": [1, 2]}) == {"a.b": 1, "a.c": {}, "d": [1, 2]}


def test_only_differing_keys_are_listed() -> None:
    assert differing_keys([{"a": 1, "b": 1.0, "c": [1]}, {"a": 2, "b": 1, "c": [1], "d": None}]) == ["a", "d"]


def test_runs_that_differ_in_the_seed_are_one_configuration(tmp_path: Path) -> None:
    low, high = {"algorithm": {"lam": 0.9}}, {"algorithm": {"lam": 1.0}}
    runs = [
        make_run(tmp_path / "a", 1, 0.5, overrides=("algorithm.lam=0.9", "launch.threads=1"), config=low),
        make_run(tmp_path / "b", 1, 0.7, overrides=("algorithm.lam=1.0", "launch.threads=2"), config=high),
        make_run(tmp_path / "c", 2, 0.6, overrides=("algorithm.lam=0.9",), config=low | {"launch": {"threads": 4}}),
    ]
    groups = group_runs(runs)
    assert [(group.label, group.runs) for group in groups] == [
        ("algorithm.lam=0.9", (0, 2)),
        ("algorithm.lam=1.0", (1,)),
    ]


def test_equal_arguments_are_told_apart_by_values(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name, 1, 0.5, config={"num_iterations": count}) for name, count in (("a", 5), ("b", 6))]
    assert [group.label for group in group_runs(runs)] == ["num_iterations=5", "num_iterations=6"]


def test_runs_without_configuration_are_apart(tmp_path: Path) -> None:
    runs = []
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text('{"state": "failed"}')
        runs.append(RunRecord(tmp_path / name))
    assert [group.runs for group in group_runs(runs)] == [(0,), (1,)]
    assert len({group.label for group in group_runs(runs)}) == 2


def test_means_count_finished_runs_and_the_last_of_a_seed(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", 1, 0.0),
        make_run(tmp_path / "b", 1, 0.4),
        make_run(tmp_path / "c", 2, 0.6),
        make_run(tmp_path / "d", 3, 0.9, state="failed"),
    ]
    (group,) = group_runs(runs)
    assert group.counted == (1, 2)
    mean = mean_value(runs, group, "last")
    assert mean is not None
    assert mean.low is not None
    assert (mean.count, mean.mean) == (2, pytest.approx(0.5))
    assert mean.mean - mean.low == pytest.approx(t_quantile(1) * 0.1)
    exact = mean_value(runs, group, "last", "greedy/exact")
    assert exact is not None
    assert exact.mean == pytest.approx(0.25)
    assert mean_value(runs, group, "best") is None


def test_differences_are_paired_by_seed(tmp_path: Path) -> None:
    scores = {"x": {1: 0.9, 2: 0.7, 3: 0.8}, "y": {2: 0.5, 3: 0.4, 4: 0.1}}
    runs = [
        make_run(tmp_path / f"{name}{seed}", seed, score, config={"name": name})
        for name, by_seed in scores.items()
        for seed, score in by_seed.items()
    ]
    (found,) = paired_differences(runs, group_runs(runs))
    assert found.seeds == (2, 3)
    assert (found.difference.count, found.difference.mean) == (2, pytest.approx(0.3))


def test_other_scores_and_unknown_seeds_are_not_paired(tmp_path: Path) -> None:
    metrics = ("sampled/score", "greedy/score")
    runs = [make_run(tmp_path / name[:1], 1, 0.5, config={"task": {"primary_metric": name}}) for name in metrics]
    for name in ("x", "y"):
        runs.append(make_run(tmp_path / name, 1, 0.5))
        (tmp_path / name / "config.yaml").unlink()
    groups = group_runs(runs)
    assert len(groups) == 4
    assert paired_differences(runs, groups) == []
