"""Checks of a run's files against recorded hashes, without executing anything. Imports no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ippo_cli.runs.checkpoint_files import find_damage
from ippo_cli.runs.folder import PARENT, checkpoint_name
from ippo_cli.runs.history import HISTORY, extend_chain, hash_file, hash_text
from ippo_cli.runs.input_files import INPUTS
from ippo_cli.runs.metric_names import present_metric_name
from ippo_cli.verification.differences import MISSING, Difference, shorten
from ippo_cli.verification.recorded import METRICS_FILE, RecordedRun, read_json_file, read_state


@dataclass(frozen=True)
class Check:
    """One check: how many things of which kind were compared, and the differences."""

    subject: str  # plural, such as `checkpoints`
    count: int
    differences: Sequence[Difference] = ()
    has_hashes: bool = True  # whether they were compared with recorded hashes


def check_files(run: RecordedRun) -> list[Check]:
    """All checks of a run's files."""
    return [
        check_checkpoints(run),
        check_initial_weights(run),
        check_opponents(run),
        check_inputs(run),
        check_rows(run),
        check_samples(run),
        check_history(run),
        check_best_scores(run),
    ]


def check_checkpoints(run: RecordedRun) -> Check:
    """Compare every file of every checkpoint with the checkpoint's manifest."""
    found = []
    for path in run.checkpoints.values():
        if (damage := find_damage(path)) is not None:
            found.append(Difference(f"checkpoints/{path.name}", "", damage))
    return Check("checkpoints", len(run.checkpoints), found)


def check_initial_weights(run: RecordedRun) -> Check:
    """Compare the initial models, in the run's folder or where they were loaded from, with their records.

    A model of the hub has a commit instead of hashes, and is not counted.
    """
    found: list[Difference] = []
    records = sorted((run.folder / "initial").glob("*.json"))
    if run.history and not records:
        found.append(Difference("initial", "", "has no record of an initial model"))
    count = 0
    for file in records:
        name = f"initial/{file.name}"
        try:
            known = json.loads(file.read_text())
            source, digests, commit = str(known["model"]), dict(known["sha256"]), known.get("commit")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            found.append(Difference(name, "", "cannot be read"))
            continue
        if not (digests or commit):
            found.append(Difference(name, "", "has neither hashes nor a commit"))
        count += bool(digests)
        own = run.folder / "initial" / file.stem
        found += _compare_hashes(own if own.is_dir() else Path(source), digests, name)
    return Check("initial models", count, found)


def check_opponents(run: RecordedRun) -> Check:
    """Compare the snapshots of opponents with the hashes in the checkpoints that refer to them."""
    known: dict[int, dict[str, Any]] = {}
    for path in run.checkpoints.values():
        known |= {int(step): files for step, files in (read_state(path).get("partners") or {}).get("snapshots") or ()}
    found: list[Difference] = []
    for step, files in known.items():
        place = f"partners/{checkpoint_name(step)}"
        digests = {name: entry["sha256"] for name, entry in files.items()}
        found += _compare_hashes(run.folder / place, digests, place)
    return Check("opponent snapshots", len(known), found)


def _compare_hashes(folder: Path, digests: dict[str, str], name: str) -> Iterator[Difference]:
    for part, digest in digests.items():
        try:
            now = hash_file(folder / part)
        except OSError as error:
            yield Difference(name, part, f"{folder / part} cannot be read ({error.strerror})")
            continue
        if now != digest:
            yield Difference(name, part, f"{folder / part} has changed")


def check_inputs(run: RecordedRun) -> Check:
    """Compare code and data files that the configuration names with `inputs.json`."""
    file = run.folder / INPUTS
    if not file.is_file():
        return Check("input files", 0)
    try:
        known = {str(name): (str(entry["sha256"]), str(entry["key"])) for name, entry in _read_object(file).items()}
    except (OSError, ValueError, KeyError, TypeError):
        return Check("input files", 0, [Difference(INPUTS, "", "cannot be read")])
    found = []
    for name, (digest, key) in known.items():
        now = _hash_if_readable(Path(name))
        if now != digest:
            found.append(Difference(INPUTS, key, f"{name} {'has changed' if now else 'is missing'}"))
    return Check("input files", len(known), found)


def _hash_if_readable(file: Path) -> str:
    try:
        return hash_file(file)
    except OSError:
        return ""


def check_rows(run: RecordedRun) -> Check:
    """Check that every line of `metrics.jsonl` is a row, and that the iterations increase."""
    found = list(run.metrics.faults)
    last = -1.0
    for line in run.metrics.lines:
        iteration = line.value.get("iteration")
        if not isinstance(iteration, (int, float)):
            found.append(Difference(METRICS_FILE, f"line {line.number}", "has no iteration"))
        elif iteration <= last:
            reason = f"iteration {iteration:g} follows iteration {last:g}"
            found.append(Difference(METRICS_FILE, f"line {line.number}", reason))
        else:
            last = iteration
    return Check("metric rows", len(run.metrics.lines), found, has_hashes=False)


def check_samples(run: RecordedRun) -> Check:
    """Check that every line of the sample files is an object."""
    files = run.record.sample_files
    found = [fault for file in files for fault in read_json_file(run.folder, f"samples/{file.path.name}").faults]
    return Check("sample files", len(files), found, has_hashes=False)


def check_best_scores(run: RecordedRun) -> Check:
    """Compare the scores in `run.json` with the rows of their iterations, and these with the evaluated rows.

    A run that did not end by itself may have been killed between a row and its score, and runs of earlier versions may
    lack rows: for them only the numbers of existing rows are compared.
    """
    entries = {name: entry for name, entry in (run.record.state.get("evaluation") or {}).items() if entry}
    found = [difference for name, entry in entries.items() for difference in _compare_scores(run, name, entry)]
    if run.history and run.record.state["state"] in ("done", "preempted"):
        found += _compare_places(run, entries)
    return Check("scores of run.json", len(entries), found, has_hashes=False)


def _compare_scores(run: RecordedRun, name: str, entry: Mapping[str, Any]) -> Iterator[Difference]:
    """The first number of an evaluation in `run.json` that its row does not have."""
    row = run.rows.get(int(entry.get("iteration", -1)))
    if row is None:
        return
    values = {present_metric_name(key): value for key, value in row.value.items()}
    is_complete = bool(run.history)  # every version with a history logs all numbers of an evaluation
    for key, value in entry.items():
        metric = f"eval/{run.record.primary_metric if key == 'score' else present_metric_name(key)}"
        recorded = values.get(metric, MISSING if is_complete else value)
        if key != "iteration" and recorded != value:
            other = "no such number" if recorded is MISSING else shorten(recorded)
            reason = f"is {shorten(value)}, and {METRICS_FILE}, line {row.number} has {other}"
            yield Difference("run.json", f"evaluation.{name}.{key}", reason)
            return


def _compare_places(run: RecordedRun, entries: Mapping[str, Any]) -> Iterator[Difference]:
    """Iterations in `run.json` that are not the last one, or not those of the first, best and last evaluation."""
    last = max(run.rows, default=0)
    if (known := run.record.state.get("iterations")) != last:
        yield Difference("run.json", "iterations", f"is {shorten(known)}, and the last row is of iteration {last}")
    for name, iteration in _evaluated_iterations(run).items():
        known = (entries.get(name) or {}).get("iteration", MISSING)
        if known != iteration:
            reason = f"is {shorten(known)}, and by {METRICS_FILE} the {name} evaluation is after iteration {iteration}"
            yield Difference("run.json", f"evaluation.{name}.iteration", reason)


def _evaluated_iterations(run: RecordedRun) -> dict[str, int]:
    """The iterations of the `first`, `best` and `last` evaluation by the rows; of equal scores the first is best."""
    metric = f"eval/{run.record.primary_metric}"
    scores = {
        iteration: score if isinstance(score := line.value[metric], (int, float)) else math.nan  # null is NaN
        for iteration, line in sorted(run.rows.items())
        if metric in line.value
    }
    if not scores:
        return {}
    known = {iteration: score for iteration, score in scores.items() if not math.isnan(score)}
    best = {"best": max(known, key=lambda iteration: known[iteration])} if known else {}
    return {"first": min(scores), **best, "last": max(scores)}


def check_history(run: RecordedRun) -> Check:
    """Recompute the chain of `history.jsonl`, and compare it with checkpoints, rows, sample files and configuration."""
    if run.history_fault is not None:
        return Check("history lines", 0, [run.history_fault])
    found = [*_check_chain(run), *_check_chain_of_checkpoints(run), *_check_hashed_rows(run), *_check_hashed_files(run)]
    return Check("history lines", len(run.history), found)


def _check_chain(run: RecordedRun) -> Iterator[Difference]:
    chain = ""
    for line in run.history:
        chain = extend_chain(chain, line.content)
        if line.chain != chain:
            yield Difference(HISTORY, f"line {line.number}", "has been edited, or lines before it are missing")
            return


def _check_chain_of_checkpoints(run: RecordedRun) -> Iterator[Difference]:
    chains = {line.chain for line in run.history}
    for path in run.checkpoints.values():
        chain = (read_state(path).get("progress") or {}).get("history")
        if chain and chain not in chains:
            reason = f"has no line with the chain of checkpoints/{path.name}: lines of it are missing or edited"
            yield Difference(HISTORY, "", reason)


def _check_hashed_rows(run: RecordedRun) -> Iterator[Difference]:
    """Rows without a line of the history are older than it, or were written just before the process was killed."""
    hashed = {line.iteration: line for line in run.history if "row" in line.content}
    for iteration, line in hashed.items():
        row = run.rows.get(iteration)
        if row is None:
            yield Difference(METRICS_FILE, f"iteration {iteration}", "the row is missing")
        elif hash_text(row.text) != line.content["row"]:
            reason = f"the row of iteration {iteration} is not the one that {HISTORY}, line {line.number} recorded"
            yield Difference(METRICS_FILE, f"line {row.number}", reason)
    if hashed:
        for iteration in sorted(run.rows.keys() - hashed.keys()):
            if min(hashed) < iteration < max(hashed):
                reason = f"the run recorded no iteration {iteration}"
                yield Difference(METRICS_FILE, f"line {run.rows[iteration].number}", reason)


def _check_hashed_files(run: RecordedRun) -> Iterator[Difference]:
    digests: dict[str, tuple[str, int]] = {}
    for line in run.history:
        digests |= {str(name): (str(digest), line.number) for name, digest in line.content["files"].items()}
    before = _copied_iterations(run.folder)
    for name, (digest, number) in digests.items():
        file = run.folder / name
        if file.is_file():
            if hash_file(file) != digest:
                yield Difference(name, "", f"is not the file that {HISTORY}, line {number} recorded")
        elif not (name.startswith("samples/") and run.history[number - 1].iteration <= before):
            yield Difference(name, "", "is missing")
    recorded = {name for name in digests if name.startswith("samples/")}
    hashed = [line.iteration for line in run.history if "row" in line.content]
    for sample in run.record.sample_files if hashed else ():
        if min(hashed) <= sample.iteration <= max(hashed) and f"samples/{sample.path.name}" not in recorded:
            yield Difference(f"samples/{sample.path.name}", "", "the run recorded no such file")


def uncovered_iterations(run: RecordedRun) -> list[int]:
    """Iterations with a row that no line of the history covers."""
    hashed = {line.iteration for line in run.history if "row" in line.content}
    return sorted(run.rows.keys() - hashed)


def _copied_iterations(folder: Path) -> int:
    """The iteration at which a population copied this run from another one; -1 for others."""
    try:
        return int(_read_object(folder / PARENT)["iteration"])
    except (OSError, ValueError, KeyError, TypeError):
        return -1


def _read_object(file: Path) -> dict[str, Any]:
    known = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(known, dict):
        raise ValueError(f"{file} is not a JSON object")
    return known
