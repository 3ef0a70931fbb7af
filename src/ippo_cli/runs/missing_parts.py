"""What a run's folder lacks by its own records: rows of `metrics.jsonl`, files of checkpoints, ends of sample files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from ippo_cli.config.errors import ResumeError
from ippo_cli.runs.folder import CHECKPOINT_NAME, MANIFEST
from ippo_cli.runs.records import RunRecord

BLOCK_BYTES = 1 << 20


def find_missing_parts(run: RunRecord) -> list[str]:
    """One phrase for each incomplete file of a run, such as `metrics.jsonl has 3 of 91 rows`; empty for a whole run.

    Compares row counts with `run.json`, and sizes with the manifests of checkpoints; hashes are not computed. Of a
    running run only rows are compared.
    """
    try:
        found = [*_missing_rows(run)]
    except ResumeError:
        return ["run.json cannot be read"]
    if not run.config:
        found.append("config.yaml cannot be read")
    if run.status != "running":
        found += [*_damaged_checkpoints(run.folder / "checkpoints"), *_cut_samples(run)]
    return found


def _missing_rows(run: RunRecord) -> Iterator[str]:
    """Rows are complete lines: one for each iteration, and one for each evaluation before the first."""
    iterations, evaluation = run.state.get("iterations"), run.state.get("evaluation")
    count = iterations if isinstance(iterations, int) else 0
    entries = evaluation.values() if isinstance(evaluation, dict) else ()
    has_initial = any(isinstance(entry, dict) and entry.get("iteration") == 0 for entry in entries)
    expected, present = count + has_initial, _count_lines(run.folder / "metrics.jsonl")
    if present < expected:
        yield f"metrics.jsonl has {present} of {expected} rows"


def _count_lines(file: Path) -> int:
    try:
        with file.open("rb") as content:
            return sum(block.count(b"\n") for block in iter(lambda: content.read(BLOCK_BYTES), b""))
    except OSError:
        return 0


def _damaged_checkpoints(folder: Path) -> Iterator[str]:
    for path in sorted(path for path in folder.glob("step_*") if CHECKPOINT_NAME.fullmatch(path.name)):
        try:
            files = json.loads((path / MANIFEST).read_text())["files"]
            sizes = {str(name): int(entry["bytes"]) for name, entry in files.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            yield f"checkpoints/{path.name}/{MANIFEST} cannot be read"
            continue
        for name, size in sizes.items():
            file = path / name
            if not file.is_file():
                yield f"checkpoints/{path.name}/{name} is missing"
            elif (present := file.stat().st_size) != size:
                yield f"checkpoints/{path.name}/{name} has {present} of {size} bytes"
    for pointer in ("latest", "best"):
        try:
            name = str(json.loads((folder / f"{pointer}.json").read_text())["checkpoint"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if name.startswith("step_") and not (folder / name).is_dir():
            yield f"checkpoints/{name}, which {pointer}.json names, is missing"


def _cut_samples(run: RunRecord) -> Iterator[str]:
    for sample in run.sample_files:
        with sample.path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(size - 1, 0))
            if size and file.read(1) != b"\n":
                yield f"samples/{sample.path.name} ends within a line"
