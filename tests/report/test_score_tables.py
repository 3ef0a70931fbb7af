"""Tables beside the page: held-out scores by agent and part, and all metrics."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from synthetic import write_run

from ippo_cli.config.tables import format_csv, format_latex, format_markdown
from ippo_cli.report.score_tables import metric_table, score_rows
from ippo_cli.runs.records import RunRecord


def make_runs(root: Path, seeds: int) -> list[RunRecord]:
    return [
        RunRecord(write_run(root / f"{name}{seed}", iterations=20, files=1, episodes_per_file=1, seed=seed, gain=gain,
                            settings={"name": name}))
        for name, gain in (("a", 1.0), ("b", 0.5))
        for seed in range(seeds)
    ]  # fmt: skip


def test_one_run_has_a_row_per_agent_part_and_mode(tmp_path: Path) -> None:
    run = make_runs(tmp_path, 1)[0]
    rows = score_rows([run])
    assert rows[0] == ["agent", "part", "mode", "first", "last", "best"]
    assert [row[:3] for row in rows[1:3]] == [["team", "exact", "sampled"], ["team", "exact", "greedy"]]
    assert ["checker", "score", "greedy"] in [row[:3] for row in rows]
    last = run.state["evaluation"]["last"]
    assert float(next(row[4] for row in rows if row[:3] == ["team", "score", "sampled"])) == round(last["score"], 6)


def test_several_seeds_have_intervals(tmp_path: Path) -> None:
    rows = score_rows(make_runs(tmp_path, 2))
    assert rows[0][:5] == ["configuration", "agent", "part", "mode", "n"]
    assert rows[0][5:8] == ["first", "first_low", "first_high"]
    row = rows[1]
    assert (row[0], row[4]) == ("name=a", "2")
    first, low, high = map(float, row[5:8])
    assert low < first < high


def test_tables_are_rectangular_in_all_formats(tmp_path: Path) -> None:
    rows = score_rows(make_runs(tmp_path, 1))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert format_markdown(rows).splitlines()[2].startswith("| name=a | team | exact | sampled |")
    assert format_latex(rows).splitlines()[4].startswith("name=a & team & exact & sampled")


def test_csv_has_all_metrics_of_all_rows(tmp_path: Path) -> None:
    runs = make_runs(tmp_path, 1)
    read = list(csv.DictReader(io.StringIO(format_csv(metric_table(runs)))))
    assert len(read) == 2 * 21
    assert read[0]["run"] == "a0"
    assert read[0]["solver/policy/entropy"] == ""
    assert float(read[1]["solver/policy/entropy"]) == runs[0].metrics[1]["solver/policy/entropy"]
    assert read[1]["solver/value/explained_variance"] == ""
