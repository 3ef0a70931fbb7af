"""`verification.json`: what was compared with what, and the result; and its summary for the terminal."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import convert_storage_errors
from ippo_cli.runs.folder import describe_versions, display_path, write_atomically
from ippo_cli.runs.history import HISTORY
from ippo_cli.verification.comparison import Comparison
from ippo_cli.verification.differences import Difference
from ippo_cli.verification.integrity import Check

CERTIFICATE = "verification.json"
MAX_PRINTED = 10  # differences in the terminal; the file has all


@dataclass(kw_only=True)
class Verification:
    """The result of a verification."""

    folder: Path
    command: Sequence[str]
    checks: Sequence[Check]
    executable: str  # iterations that can be executed again
    uncovered: Sequence[int] = ()  # iterations with a row that the history does not cover
    comparisons: list[Comparison] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # executions that failed
    environments: list[Mapping[str, Any]] = field(default_factory=list)  # recorded, executed, changes; by execution
    limits: list[str] = field(default_factory=list)  # why equality to the byte may not hold

    @property
    def differences(self) -> list[Difference]:
        """All differences, those of files before those of executions."""
        of_files = [difference for check in self.checks for difference in check.differences]
        return [*of_files, *(difference for found in self.comparisons for difference in found.differences)]

    @property
    def is_verified(self) -> bool:
        return not self.differences and not self.failures

    @property
    def has_execution_differences_only(self) -> bool:
        """Whether all files match their hashes, and only executions differ."""
        return not self.failures and not any(check.differences for check in self.checks)


def write_certificate(verification: Verification, target: Path) -> None:
    """Write the certificate. Raises `StorageError`."""
    with convert_storage_errors(str(target)):
        write_atomically(target, json.dumps(_to_json(verification), indent=1) + "\n")


def _to_json(verification: Verification) -> dict[str, Any]:
    return {
        "run": verification.folder.name,
        "result": "verified" if verification.is_verified else "differs",
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": list(verification.command),
        "machine": describe_versions() | {"cores": os.cpu_count(), "processor": platform.machine()},
        "files": {
            check.subject: {"compared": check.count, "differences": len(check.differences)}
            for check in verification.checks
        },
        "not_covered_by_history": list(verification.uncovered),
        "executable": verification.executable,
        "executions": [
            _execution_json(found, environment)
            for found, environment in zip(verification.comparisons, verification.environments, strict=True)
        ],
        "equality_limits": list(verification.limits),
        "failures": list(verification.failures),
        "differences": [difference.to_json() for difference in verification.differences],
    }


def _execution_json(found: Comparison, environment: Mapping[str, Any]) -> dict[str, Any]:
    def pairs(hashes: Mapping[str, tuple[str, str]]) -> dict[str, dict[str, str]]:
        return {name: {"recorded": before, "executed": now} for name, (before, now) in hashes.items()}

    return {
        "selected": list(found.execution.targets),
        "first": found.execution.first,
        "last": found.execution.last,
        "from": f"step {found.execution.base}" if found.execution.base else "initial weights",
        "seconds": round(found.seconds, 1),
        "environment": dict(environment),
        "rows": pairs(found.rows),
        "samples": pairs(found.samples),
        "weights": pairs(found.weights),
        "new_keys": sorted(found.new_names),
        "differences": len(found.differences),
    }


def format_verification(verification: Verification, target: Path) -> str:
    """The lines for the terminal."""
    return "\n".join(_lines(verification, target))


def _lines(verification: Verification, target: Path) -> Iterator[str]:
    counted = ", ".join(f"{check.subject} {check.count}" for check in verification.checks if check.count)
    broken = sum(len(check.differences) for check in verification.checks)
    yield f"files: {counted}: {f'{broken} differences' if broken else 'as recorded'}"
    if verification.uncovered:
        rows = _format_ranges(verification.uncovered)
        yield f"not covered by {HISTORY}: rows and samples of iterations {rows} (only an execution verifies them)"
    yield f"iterations that can be executed again: {verification.executable}"
    for found in verification.comparisons:
        compared = f"{len(found.rows)} rows, {len(found.samples)} sample files, {len(found.weights)} files of weights"
        base = f"step {found.execution.base}" if found.execution.base else "the initial weights"
        state = f"{len(found.differences)} differences" if found.differences else "equal"
        span = f"{found.execution.first} to {found.execution.last}"
        yield f"executed {span} from {base} in {found.seconds:.0f} s: {compared}: {state}"
        if found.new_names:
            yield f"  not compared: {', '.join(sorted(found.new_names)[:5])} (the run did not record them)"
    yield from (f"failed: {failure}" for failure in verification.failures)
    differences = verification.differences
    yield from (f"differs: {difference}" for difference in differences[:MAX_PRINTED])
    if len(differences) > MAX_PRINTED:
        yield f"and {len(differences) - MAX_PRINTED} more in the certificate"
    if differences and verification.has_execution_differences_only and (limits := _all_limits(verification)):
        yield f"the differences may come from: {'; '.join(limits)}"
    yield f"{'verified' if verification.is_verified else 'NOT VERIFIED'}: {display_path(target)}"


def _all_limits(verification: Verification) -> list[str]:
    changes = [change for environment in verification.environments for change in environment["changes"]]
    return [*dict.fromkeys(changes), *verification.limits]


def _format_ranges(numbers: Sequence[int]) -> str:
    """`0 to 3, 7` for `[0, 1, 2, 3, 7]`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts)
