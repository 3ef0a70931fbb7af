"""Which runs a report has, where it is written, and what is written beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
from synthetic import write_run

from ippo_cli.config.errors import ConfigError
from ippo_cli.report.write import ReportOptions, collect_runs, default_target, default_title, write_report


def make_runs(root: Path, *names: str) -> list[Path]:
    return [write_run(root / name, iterations=5, files=1, episodes_per_file=1) for name in names]


def test_runs_of_folders_are_collected_once(tmp_path: Path) -> None:
    first, second = make_runs(tmp_path, "x/1", "x/2")
    assert [run.folder for run in collect_runs([tmp_path / "x", first, tmp_path / "x" / ".." / "x" / "2"])] == [
        first,
        second,
    ]


def test_folders_without_runs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"contains no run \(run\.json\); use a run's folder"):
        collect_runs([tmp_path])
    with pytest.raises(ConfigError, match=r"absent is not a folder"):
        collect_runs([tmp_path / "absent"])


def test_default_target_and_title(tmp_path: Path) -> None:
    make_runs(tmp_path, "x/1", "y/2")
    one, both = collect_runs([tmp_path / "x"]), collect_runs([tmp_path])
    assert default_target(one) == tmp_path / "x" / "1" / "report.html"
    assert default_target(both) == tmp_path / "report.html"
    assert (default_title(one), default_title(both)) == ("synthetic · 1", "synthetic · 2 runs")


def test_files_beside_the_page(tmp_path: Path) -> None:
    make_runs(tmp_path, "x")
    target = tmp_path / "new" / "compare.html"
    written = write_report(
        collect_runs([tmp_path / "x"]), target, "a title", ReportOptions(csv=True, markdown=True, latex=True)
    )
    assert [file.name for file in written] == ["compare.html", "compare.csv", "compare.md", "compare.tex"]
    assert all(file.stat().st_size for file in written)
    assert "<title>a title</title>" in target.read_text()
    assert not list(target.parent.glob(".*"))
