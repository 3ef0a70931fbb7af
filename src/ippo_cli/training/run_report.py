"""Writes the report of a run at its end; a failure is a warning and never changes the run's result."""

from __future__ import annotations

from pathlib import Path

from ippo_cli.config.schema import TrackerConfig
from ippo_cli.engine import distributed
from ippo_cli.runs.folder import print_warning

QUICK_BYTES = 16e6  # of samples and metrics; a run that has to end soon writes no report of more


def write_run_report(folder: Path, tracker: TrackerConfig, *, is_urgent: bool = False) -> None:
    """Write `report.html` on rank 0 if `tracker.report` is set.

    `is_urgent`: the run was preempted or failed, and its process may soon be killed.
    """
    if not (tracker.report and distributed.is_main()):
        return
    try:
        if is_urgent and _input_bytes(folder) > QUICK_BYTES:
            return
        from ippo_cli.report.write import REPORT_NAME, write_report
        from ippo_cli.runs.records import RunRecord

        write_report([RunRecord(folder)], folder / REPORT_NAME)
    except Exception as error:
        print_warning(f"report.html is not written ({error}); ippo-report {folder} writes it")


def _input_bytes(folder: Path) -> int:
    files = [folder / "metrics.jsonl", *(folder / "samples").glob("*.jsonl")]
    return sum(file.stat().st_size for file in files if file.is_file())
