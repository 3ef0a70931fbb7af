"""Pilot runs with a recorded outcome, fit the pilot's probability that a run learns, and judge it on left-out tasks.

    nice python scripts/bench/pilot_outcomes.py pilot       missing pilots: about 6 s each
    python scripts/bench/pilot_outcomes.py record           writes docs/data/pilot_outcomes.jsonl.gz
    python scripts/bench/pilot_outcomes.py fit              writes src/ippo_cli/pilot/outcomes.json
    python scripts/bench/pilot_outcomes.py judge            writes the tables of docs/pilot.md

The runs are those of `forecast_runs.py`, and their outcomes those of its record. A pilot has as many prompts as that of
a usual run, more than a hundredth of these short runs allows. Finished pilots are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from forecast_jobs import Job, list_jobs
from forecast_runs import COUNT, RECORD, read_records, write_packed
from pilots import ROOT, run_here

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import build_config, compose_node, resolve_config
from ippo_cli.config.errors import IppoError
from ippo_cli.pilot.size import RESPONSES, USUAL_PROMPTS
from ippo_cli.tasks.task import response_budgets

DATA = ROOT / "docs/data/pilot_outcomes.jsonl.gz"
DIGITS = 4  # significant digits of recorded numbers
LEFT_OUT = ("examples", "seconds", "gradient_shares", "reason")  # parts of a report that are not recorded
READ_METRICS = re.compile(
    r".*/(rollout/(truncated_fraction|response_length)|(policy|joint)/entropy|targets/zero_advantage_fraction)"
)
Record = dict[str, Any]


def main() -> int:
    given = _arguments()
    os.chdir(ROOT)  # files of tasks are relative to this folder
    file = given.output.absolute() / "pilots.jsonl"
    if given.command == "pilot":
        pilot_jobs(list_jobs(given.count), file)
        return 0
    if given.command == "record":
        return record(file)
    import pilot_outcomes_judge

    return pilot_outcomes_judge.main(given.command, read_recorded())


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("pilot", "record", "fit", "judge"))
    parser.add_argument(
        "--count", type=int, default=COUNT, help="number of runs; those without an outcome are left out"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "outputs" / "pilot_outcomes", help="finished pilots")
    return parser.parse_args()


def pilot_jobs(jobs: list[Job], file: Path) -> None:
    """Pilot the jobs with a recorded outcome that have no pilot yet."""
    file.parent.mkdir(parents=True, exist_ok=True)
    done = {record["name"] for record in _read_lines(file)}
    known = {record["name"] for record in read_records(RECORD)}
    for job in jobs:
        if job.name not in known or job.name in done:
            continue
        began, home = time.perf_counter(), file.parent / "work"
        home.mkdir(exist_ok=True)
        overrides = [*job.overrides, "name=pilot"]
        try:
            data = run_here([*overrides, f"pilot.tokens={count_tokens(overrides)}"], home)
        except IppoError as error:
            data = {"error": " ".join(str(error).split())[:300]}
        shutil.rmtree(home)
        seconds = time.perf_counter() - began
        kept: Record = {key: value for key, value in data.items() if key not in LEFT_OUT}
        metrics = kept.get("metrics", {})
        kept["metrics"] = {name: value for name, value in metrics.items() if READ_METRICS.fullmatch(name)}
        with file.open("a") as target:
            target.write(json.dumps({"name": job.name, **kept, "seconds": round(seconds, 1)}) + "\n")
        print(f"{job.name:<52} {seconds:5.1f} s  {data.get('verdict', data.get('error'))}", flush=True)


def count_tokens(overrides: list[str]) -> int:
    """`pilot.tokens` with as many prompts as usual pilots have."""
    config = build_config(resolve_config(compose_node(normalize_arguments([*overrides, "mode=pilot"]))))
    responses = max(config.rollout.num_generations, RESPONSES if config.rollout.num_generations == 1 else 1)
    return USUAL_PROMPTS * responses * sum(response_budgets(config).values())


def record(file: Path) -> int:
    """Write the pilots of runs with an outcome, with the outcome."""
    runs = {run["name"]: run for run in read_records(RECORD)}
    found = [
        {key: runs[pilot["name"]][key] for key in ("name", "family", "arm", "outcome")} | _round(pilot)
        for pilot in _read_lines(file)
        if pilot["name"] in runs and "error" not in pilot
    ]
    write_packed(sorted(found, key=lambda one: one["name"]), DATA)
    print(f"{len(found)} pilots: {DATA}")
    return 0


def _round(value: Any) -> Any:
    """Numbers with `DIGITS` significant digits, in nested data."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _round(own) for key, own in value.items()}
    return [_round(own) for own in value] if isinstance(value, list) else value


def _read_lines(file: Path) -> Iterator[Record]:
    if file.exists():
        with file.open() as lines:
            yield from (json.loads(line) for line in lines)


def read_recorded() -> list[Record]:
    """The recorded pilots with the outcomes of their runs."""
    return read_records(DATA)


if __name__ == "__main__":
    sys.exit(main())
