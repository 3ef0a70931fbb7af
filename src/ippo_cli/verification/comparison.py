"""Compares what a run recorded with an execution of the same iterations: rows, samples, weights, state."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ippo_cli.runs.checkpoint_files import METHODS_FILE
from ippo_cli.runs.history import hash_file, hash_text
from ippo_cli.runs.metric_names import is_measured, present_metric_name
from ippo_cli.verification.differences import MISSING, Difference, ValueDifference, new_keys, value_differences
from ippo_cli.verification.recorded import (
    METRICS_FILE,
    RecordedRun,
    read_json_file,
    read_manifest,
    read_state,
)
from ippo_cli.verification.selection import Execution

STATE_KEYS = ("kl_coef", "score_moments", "skipped_in_a_row", "grad_norms", "losses")
WEIGHTS = ".safetensors"


@dataclass
class Comparison:
    """Hashes of what was compared, recorded and executed, by name; and where they differ."""

    execution: Execution
    seconds: float = 0.0
    rows: dict[str, tuple[str, str]] = field(default_factory=dict)
    samples: dict[str, tuple[str, str]] = field(default_factory=dict)
    weights: dict[str, tuple[str, str]] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    new_names: set[str] = field(default_factory=set)  # keys that this version writes and the run did not


def compare(run: RecordedRun, executed: RecordedRun, execution: Execution, seconds: float) -> Comparison:
    """Compare all iterations of an execution with the run."""
    found = Comparison(execution, seconds)
    _compare_rows(run, executed, found)
    _compare_samples(run, executed, found)
    last = execution.last
    if last in run.checkpoints and last in executed.checkpoints:
        _compare_weights(run.checkpoints[last], executed.checkpoints[last], found)
        _compare_states(run.checkpoints[last], executed.checkpoints[last], found)
    elif last in run.checkpoints:
        place = f"checkpoints/{run.checkpoints[last].name}"
        found.differences.append(Difference(place, "", "the execution writes no such checkpoint"))
    if last == run.last_iteration and (run.folder / "elo.json").is_file():
        _compare_ratings(run.folder / "elo.json", executed.folder / "elo.json", found)
    return found


def _compare_rows(run: RecordedRun, executed: RecordedRun, found: Comparison) -> None:
    for number, line in executed.rows.items():
        now = comparable_row(line.value)
        if number not in run.rows:
            found.differences.append(Difference(METRICS_FILE, f"iteration {number}", "the row is missing"))
            continue
        before = comparable_row(run.rows[number].value)
        found.new_names |= {name for name in now if name not in before}
        now = {name: value for name, value in now.items() if name in before}
        found.rows[str(number)] = _hash_json(before), _hash_json(now)
        _add_first(found, METRICS_FILE, f"line {run.rows[number].number}", value_differences(before, now))
    for number, line in run.rows.items():
        if found.execution.first <= number <= found.execution.last and number not in executed.rows:
            reason = "the execution writes no such row"
            found.differences.append(Difference(METRICS_FILE, f"line {line.number}", reason))


def comparable_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row under present names without times and memory, which no execution repeats."""
    return {present_metric_name(name): value for name, value in row.items() if not is_measured(name)}


def _hash_json(value: Any) -> str:
    return hash_text(json.dumps(value, sort_keys=True))


def _compare_samples(run: RecordedRun, executed: RecordedRun, found: Comparison) -> None:
    recorded = {file.path.name: file.path for file in run.record.sample_files}
    now = {file.path.name: file for file in executed.record.sample_files}
    for name, file in now.items():
        place = f"samples/{name}"
        if name not in recorded:
            found.differences.append(Difference(place, "", "is missing"))
            continue
        found.samples[name] = hash_file(recorded[name]), hash_file(file.path)
        if len(set(found.samples[name])) > 1:
            _compare_sample_file(run.folder, executed.folder, place, found)
    for file in run.record.sample_files:
        if found.execution.first <= file.iteration <= found.execution.last and file.path.name not in now:
            found.differences.append(Difference(f"samples/{file.path.name}", "", "the execution writes no such file"))


def _compare_sample_file(recorded: Path, executed: Path, place: str, found: Comparison) -> None:
    """Find the first differing value of a file; one that only lacks keys of this version does not differ."""
    before, now = read_json_file(recorded, place), read_json_file(executed, place)
    for old, new in zip(before.lines, now.lines, strict=False):
        found.new_names |= new_keys(old.value, new.value)
        if _add_first(found, place, f"line {old.number}", value_differences(old.value, new.value)):
            return
    if before.faults or len(before.lines) != len(now.lines):
        reason = f"has {len(before.lines)} readable lines, and {len(now.lines)} when executed again"
        found.differences.append(Difference(place, "", reason))


def _compare_weights(recorded: Path, executed: Path, found: Comparison) -> None:
    before, now = read_manifest(recorded), read_manifest(executed)
    for name in sorted(file for file in before if file.endswith(WEIGHTS)):
        digest = str(before[name]["sha256"])
        other = str(now[name]["sha256"]) if name in now else ""
        found.weights[f"{recorded.name}/{name}"] = digest, other
        if digest != other:
            tensor, reason = _first_tensor_difference(recorded / name, executed / name)
            found.differences.append(Difference(f"checkpoints/{recorded.name}/{name}", tensor, reason))


def _first_tensor_difference(recorded: Path, executed: Path) -> tuple[str, str]:
    """The first differing tensor of two files, and its first differing element."""
    import torch
    from safetensors import safe_open

    if not executed.is_file():
        return "", "the execution writes no such file"
    with safe_open(recorded, "pt") as before, safe_open(executed, "pt") as now:
        recorded_names, names = before.keys(), set(now.keys())
        for name in recorded_names:
            if name not in names:
                return f"tensor {name}", "is missing when executed again"
            old, new = before.get_tensor(name), now.get_tensor(name)
            if old.shape != new.shape or old.dtype != new.dtype:
                return f"tensor {name}", f"has {old.dtype} {[*old.shape]}, and {new.dtype} {[*new.shape]} when executed"
            unequal = (old != new) & ~((old != old) & (new != new))
            if bool(unequal.any()):
                place = tuple(torch.nonzero(unequal)[0].tolist())
                values = f"{old[place].item()!r} in the run, {new[place].item()!r} when executed again"
                return f"tensor {name}{list(place)}", f"{values}; {int(unequal.sum())} of {old.numel()} elements differ"
    return "", "has other bytes, and equal tensors"


def _compare_states(recorded: Path, executed: Path, found: Comparison) -> None:
    before, now = read_state(recorded), read_state(executed)
    for key in STATE_KEYS:
        if key in before:
            place = f"checkpoints/{recorded.name}/state.json"
            _add_first(found, place, key, value_differences(before[key], now.get(key, MISSING)))
    place, states = f"checkpoints/{recorded.name}/{METHODS_FILE}", now.get("methods", {})
    for name, state in before.get("methods", {}).items():
        if state or states.get(name):
            values = [_without_tokenizer_settings(one) for one in (state, states.get(name, MISSING))]
            _add_first(found, place, name, value_differences(*values))


def _without_tokenizer_settings(value: Any) -> Any:
    """A state without files of snapshots that earlier versions wrote otherwise without a network; the files
    themselves are compared with their recorded hashes.
    """
    if isinstance(value, dict):
        compared = {name: item for name, item in value.items() if not name.endswith("/tokenizer_config.json")}
        return {name: _without_tokenizer_settings(item) for name, item in compared.items()}
    return [_without_tokenizer_settings(item) for item in value] if isinstance(value, list) else value


def _compare_ratings(recorded: Path, executed: Path, found: Comparison) -> None:
    try:
        before, now = json.loads(recorded.read_text()), json.loads(executed.read_text())
    except (OSError, ValueError) as error:
        found.differences.append(Difference(recorded.name, "", f"cannot be read ({error})"))
        return
    _add_first(found, recorded.name, "", value_differences(before, now))


def _add_first(found: Comparison, file: str, place: str, differences: Iterator[ValueDifference]) -> bool:
    """Add the first difference, with the number of further ones; False without one."""
    first = next(differences, None)
    if first is None:
        return False
    more = sum(1 for _ in differences)
    reason = first.reason + (f"; {more} more values differ" if more else "")
    found.differences.append(Difference(file, ", ".join(filter(None, [place, first.path])), reason))
    return True
