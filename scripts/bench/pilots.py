"""Run pilots of healthy configurations and of others that cannot learn, and compare their verdicts and findings.

    python scripts/bench/pilots.py /tmp/pilots                    80 configurations: half an hour on one core
    python scripts/bench/pilots.py /tmp/pilots --only 'judged/fails/*' --verbose
    python scripts/bench/pilots.py /tmp/pilots --record           also the data and table of docs/pilot.md
    python scripts/bench/pilots.py /tmp/pilots --report           the table of the recorded pilots alone

The lists are `pilot_judged.py` and `pilot_configurations.py`. A configuration that cannot learn is right if one of its
expected findings is named, and a healthy one if its verdict is neither `no signal` nor `too large steps`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from learning import write_between
from pilot_configurations import DEVELOPMENT, Configuration
from pilot_judged import JUDGED

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import build_config, compose_node, resolve_config
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import IppoError
from ippo_cli.pilot.folder import report_path, work_folder
from ippo_cli.pilot.run_pilot import run_pilot

LISTS = {"judged": JUDGED, "development": DEVELOPMENT}
ROOT = Path(__file__).resolve().parents[2]
DATA, PAGE = ROOT / "docs/data/pilots.json", ROOT / "docs/pilot.md"
MARKERS = ("<!-- pilots -->", "<!-- /pilots -->")
HOPELESS = ("no signal", "too large steps", "error")


def main() -> int:
    given = _arguments()
    if given.report:
        write_table(json.loads(DATA.read_text()))
        return 0
    os.chdir(ROOT)  # files of tasks are relative to this folder
    named = [replace(job, name=f"{name}/{job.name}") for name, jobs in LISTS.items() for job in jobs]
    jobs = [job for job in named if any(fnmatchcase(job.name, pattern) for pattern in given.only)]
    outcomes = [run(job, given.folder, verbose=given.verbose) for job in jobs]
    wrong = [outcome["name"] for outcome in outcomes if not outcome["right"]]
    print(f"{len(jobs) - len(wrong)} of {len(jobs)} right" + (f"; not: {' '.join(wrong)}" if wrong else ""))
    if given.record:
        DATA.write_text("[\n" + ",\n".join(map(json.dumps, outcomes)) + "\n]\n")
        write_table(outcomes)
    return 1 if wrong else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the pilots")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of names")
    parser.add_argument("--verbose", action="store_true", help="print the findings")
    parser.add_argument("--record", action="store_true", help="write the documents' data and table")
    parser.add_argument("--report", action="store_true", help="write the table of the recorded pilots")
    return parser.parse_args()


def run(job: Configuration, root: Path, *, verbose: bool) -> dict[str, Any]:
    """Run one pilot, unless the folder has its report; returns what is recorded of it."""
    home = root / job.name
    home.mkdir(parents=True, exist_ok=True)
    for name, text in job.files.items():
        (home / name).write_text(text)
    began = time.perf_counter()
    if reports := sorted(home.glob("*/pilot/*.json")):
        return judge(job, json.loads(reports[-1].read_text()), 0.0, verbose=verbose)
    overrides = [text.replace("HOME", str(home.absolute())) for text in job.overrides]
    try:
        data = run_here(overrides, home)
    except IppoError as error:
        data = {"verdict": "error", "reason": " ".join(str(error).split()), "findings": []}
    return judge(job, data, time.perf_counter() - began, verbose=verbose)


def run_here(overrides: Sequence[str], home: Path) -> dict[str, Any]:
    """Run a pilot in this process; returns its report."""
    arguments = normalize_arguments([*overrides, "mode=pilot", f"output_dir={home.absolute()}"])
    config = build_config(resolve_config(compose_node(arguments)))
    check_config(config, 1)
    with work_folder(config) as folder, (home / "log.txt").open("w") as log, redirect_stdout(log):
        run_pilot(config, folder)
        return json.loads(report_path(folder).read_text())


def judge(job: Configuration, data: dict[str, Any], seconds: float, *, verbose: bool) -> dict[str, Any]:
    """Compare a report with what is expected; prints a line, and returns what is recorded."""
    found = [finding["name"] for finding in data["findings"]]
    is_right = bool(set(found) & set(job.expected)) if job.expected else data["verdict"] not in HOPELESS
    size = data.get("size")
    outcome = {
        "name": job.name,
        "overrides": list(job.overrides),
        "expected": list(job.expected),
        "right": is_right,
        "verdict": data["verdict"],
        "reason": data["reason"],
        "findings": found,
        "token_fraction": data["tokens"] / size["run_tokens"] if size else None,
    }
    share = "-" if size is None else f"{outcome['token_fraction']:.3f}"
    print(f"{'right' if is_right else 'WRONG'}  {job.name:<34} {seconds:5.1f} s {share:>6}  {data['verdict']}: {found}")
    if verbose:
        for finding in data["findings"]:
            print(f"         {finding['finding']}; {finding['advice']}: {finding['try']}")
    sys.stdout.flush()
    return outcome


def write_table(outcomes: list[dict[str, Any]]) -> None:
    """Write the counts of both lists and the table of the judged one into the page."""
    lines = [count_right(list_name, outcomes) for list_name in LISTS]
    lines += ["", "| configuration | verdict | findings | tokens |", "|---|---|---|---|"]
    for outcome in outcomes:
        list_name, _, name = outcome["name"].partition("/")
        if list_name != "judged":
            continue
        findings = ", ".join(f"`{name}`" for name in dict.fromkeys(outcome["findings"])) or "-"
        share = "-" if outcome["token_fraction"] is None else f"{outcome['token_fraction']:.1%}"
        wrong = "" if outcome["right"] else " (wrong)"
        shown = name.replace("/", ": ").replace("_", " ")
        lines.append(f"| {shown}{wrong} | {outcome['verdict']} | {findings} | {share} |")
    write_between(PAGE, "\n".join(lines), MARKERS)


def count_right(list_name: str, outcomes: list[dict[str, Any]]) -> str:
    """A line about one list: causes named, and healthy configurations called hopeless."""
    own = [outcome for outcome in outcomes if outcome["name"].startswith(f"{list_name}/")]
    failing = [outcome for outcome in own if outcome["expected"]]
    healthy = [outcome for outcome in own if not outcome["expected"]]
    named, hopeless = sum(one["right"] for one in failing), sum(not one["right"] for one in healthy)
    learn = sum(one["verdict"] == "learns" for one in healthy)
    return (
        f"- {list_name}: the cause of {named} of {len(failing)} that cannot learn was named; {hopeless} of "
        f"{len(healthy)} healthy ones were called hopeless, and {learn} were seen to learn."
    )


if __name__ == "__main__":
    sys.exit(main())
