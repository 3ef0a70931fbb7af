"""`sweep=optuna`: proposals are deterministic for any order of completion, and jobs below the median are pruned."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import OptunaSweepConfig, SweepKind
from ippo_cli.sweeps.folder import JobRow
from ippo_cli.sweeps.optuna import OptunaSearch, median_prune_iteration
from ippo_cli.sweeps.space import Dimension

CONFIG = OptunaSweepConfig(
    kind=SweepKind.optuna,
    max_parallel=1,
    seed=0,
    space={},
    trials=12,
    startup_trials=3,
    prune=True,
    prune_after=0,
)
SPACE = [Dimension(key="x", low=0.0, high=1.0), Dimension(key="mode", choices=("a", "b"))]
needs_optuna = pytest.mark.skipif(find_spec("optuna") is None, reason="the extra `sweeps` is not installed")


def ended(folder: Path, row: JobRow, score: float) -> JobRow:
    """Write the files of a completed job with this score; return its row."""
    place = folder / str(row.job)
    place.mkdir(exist_ok=True)
    (place / "config.yaml").write_text("task: {primary_metric: sampled/score}")
    (place / "metrics.jsonl").write_text(json.dumps({"iteration": 1, "eval/sampled/score": score}) + "\n")
    return replace(row, folder=str(row.job), state="done")


def value(row: JobRow) -> float:
    return float(next(text for text in row.overrides if text.startswith("x=")).partition("=")[2])


def searched(folder: Path, config: OptunaSweepConfig) -> list[JobRow]:
    """All jobs of a search with the largest allowed number in parallel; the score is highest at x = 0.7.

    The job that started last finishes first.
    """
    search, rows = OptunaSearch(config, SPACE, ["fixed=1"]), []
    while True:
        while new := search.new_rows(folder, rows):
            rows += new
        running = [place for place, row in enumerate(rows) if row.state == "waiting"]
        if not running:
            return rows
        rows[running[-1]] = ended(folder, rows[running[-1]], 1.0 - abs(value(rows[running[-1]]) - 0.7))


@needs_optuna
def test_search_improves_and_is_deterministic(tmp_path: Path) -> None:
    rows = searched(tmp_path, CONFIG)
    assert len(rows) == 12
    assert all(row.overrides[0] == "fixed=1" for row in rows)
    early, late = ([abs(value(row) - 0.7) for row in part] for part in (rows[:4], rows[-4:]))
    assert sum(late) < sum(early)
    assert [row.overrides for row in searched(tmp_path, CONFIG)] == [row.overrides for row in rows]
    assert [row.overrides for row in searched(tmp_path, replace(CONFIG, seed=1))] != [row.overrides for row in rows]


@needs_optuna
def test_resumed_search_proposes_same_jobs(tmp_path: Path) -> None:
    rows = searched(tmp_path, CONFIG)
    proposed = OptunaSearch(CONFIG, SPACE, ["fixed=1"]).new_rows(tmp_path, rows[:7])
    assert [row.overrides for row in proposed] == [rows[7].overrides]


@needs_optuna
def test_parallel_job_independent_of_running_jobs(tmp_path: Path) -> None:
    search = OptunaSearch(replace(CONFIG, max_parallel=3), SPACE, [])
    rows: list[JobRow] = []
    for _ in range(3):
        rows += search.new_rows(tmp_path, rows)
    assert len(rows) == 3
    assert search.new_rows(tmp_path, rows) == []
    rows[2] = ended(tmp_path, rows[2], 0.9)  # the fourth job depends only on the first
    assert search.new_rows(tmp_path, rows) == []
    rows[0] = ended(tmp_path, rows[0], 0.1)
    [one] = search.new_rows(tmp_path, rows)
    rows[1] = ended(tmp_path, rows[1], 0.2)
    [other] = search.new_rows(tmp_path, rows)
    assert (one.job, one.overrides) == (4, other.overrides)


@needs_optuna
def test_failed_job_is_skipped(tmp_path: Path) -> None:
    search = OptunaSearch(CONFIG, SPACE, [])
    [row] = search.new_rows(tmp_path, [])
    assert len(search.new_rows(tmp_path, [replace(row, state="failed")])) == 1


def test_missing_package_error_names_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ippo_cli.sweeps.optuna.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'ippo-cli\[sweeps\]'"):
        OptunaSearch(CONFIG, SPACE, [])


def test_median_prune_iteration() -> None:
    others = [[(0, 0.1), (2, 0.3), (4, 0.6)], [(0, 0.1), (2, 0.5), (4, 0.7)], [(0, 0.1), (2, 0.4), (4, 0.8)]]
    assert median_prune_iteration([(0, 0.1), (2, 0.39)], others, CONFIG) == 2
    assert median_prune_iteration([(0, 0.1), (2, 0.4)], others, CONFIG) is None
    assert median_prune_iteration([(0, 0.45), (2, 0.2)], others, CONFIG) is None, "its best score is above the median"
    assert median_prune_iteration([(0, 0.1), (2, 0.39)], others[:2], CONFIG) is None, "too few jobs are done"
    assert median_prune_iteration([(0, 0.1), (2, 0.39)], others, replace(CONFIG, prune_after=2)) is None
    assert median_prune_iteration([(0, 0.1), (2, 0.5), (4, 0.1)], others, CONFIG) is None, (
        "the last iteration is excluded"
    )
    assert median_prune_iteration([(0, 0.05), (3, 0.0)], others, CONFIG) is None, "no other job has a score there"
