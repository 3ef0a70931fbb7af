"""Comparison of runs: groups of seeds, differing keys, and metrics."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run_folders import write_run

from ippo_cli.catalog.compare import compare_runs, to_json_data
from ippo_cli.catalog.entries import list_runs
from ippo_cli.catalog.format import format_comparison
from ippo_cli.config.text import text_width


def agents(rate: float, other: float) -> dict[str, object]:
    own = {"low": {"actor": {"learning_rate": rate}}, "high": {"actor": {"learning_rate": other}}}
    return {"primary_metric": "sampled/score", "agents": own}


def test_runs_that_differ_in_seed_share_a_group(tmp_path: Path) -> None:
    for seed, last in ((1, 0.5), (2, 0.7), (3, 0.6)):
        write_run(tmp_path, "a", seed=seed, scores={"first": 0.1, "last": last})
    write_run(tmp_path, "b", algorithm={"advantage": "group", "gamma": 1.0}, scores={"last": 0.9})
    comparison = compare_runs(sorted(list_runs([tmp_path]), key=lambda entry: entry.name))
    assert [(group.label, len(group.entries)) for group in comparison.groups] == [("A", 3), ("B", 1)]
    mean = comparison.groups[0].mean_score("last")
    assert mean is not None
    assert (mean.mean, mean.low, mean.high) == (
        pytest.approx(0.6),
        pytest.approx(0.6 - 4.303 * 0.1 / 3**0.5, abs=1e-4),
        pytest.approx(0.6 + 4.303 * 0.1 / 3**0.5, abs=1e-4),
    )
    assert comparison.differences == (("algorithm.advantage", ("gae", "group")),)
    text = format_comparison(comparison)
    assert "0.600 [0.352, 0.848]" in text
    assert "low/score/mean  0.4 (0.4)  0.4 (0.4)" in text
    assert max(map(text_width, text.splitlines())) <= 120
    assert json.loads(json.dumps(to_json_data(comparison)))["groups"][0]["seeds"] == [1, 2, 3]


def test_a_repeated_seed_counts_once(tmp_path: Path) -> None:
    for age, last in ((2, 0.1), (1, 0.5)):
        write_run(tmp_path, "a", seed=1, scores={"last": last}, age_days=age)
    (group,) = compare_runs(list_runs([tmp_path])).groups
    mean = group.mean_score("last")
    assert mean is not None
    assert (mean.count, mean.mean) == (1, 0.5)


def test_runs_that_are_not_done_count_only_if_none_is(tmp_path: Path) -> None:
    write_run(tmp_path, "a", seed=1, scores={"last": 0.5}, age_days=2)
    write_run(tmp_path, "a", seed=1, state="failed", scores={"last": 0.1}, age_days=1)
    write_run(tmp_path, "a", seed=2, state="failed", scores={"last": 0.2}, age_days=1)
    (group,) = compare_runs(list_runs([tmp_path])).groups
    assert [entry.last for entry in group.entries] == [0.5]
    write_run(tmp_path, "b", gamma=2, state="failed", scores={"last": 0.3})
    assert [len(group.entries) for group in compare_runs(list_runs([tmp_path])).groups] == [1, 1]


def test_means_of_fewer_runs_have_their_number(tmp_path: Path) -> None:
    for seed, scores in enumerate(({"first": 0.1, "last": 0.5}, {"first": 0.3}, {"first": 0.2})):
        write_run(tmp_path, "a", seed=seed, scores=scores)
    lines = format_comparison(compare_runs(list_runs([tmp_path]))).splitlines()
    line = next(line for line in lines if line.startswith("A"))
    assert line.rstrip().endswith("-     0.500 (n=1)")
    assert "(n=3)" not in line


def test_agents_that_follow_their_group_are_left_out(tmp_path: Path) -> None:
    for name, rate in (("a", 1e-3), ("b", 1e-4)):
        write_run(tmp_path, name, actor={"learning_rate": rate}, task=agents(rate, 2 * rate))
    comparison = compare_runs(sorted(list_runs([tmp_path]), key=lambda entry: entry.name))
    assert dict(comparison.differences) == {
        "actor.learning_rate": ("0.001", "0.0001"),
        "task.agents.high.actor.learning_rate": ("0.002", "0.0002"),
    }
