"""What a run's folder lacks by its own records, and which of its files are damaged."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from ippo_cli.config.errors import ResumeError
from ippo_cli.runs.folder import CHECKPOINT_NAME, MANIFEST, PARENT
from ippo_cli.runs.history import HISTORY, START_FILES, HistoryLine, hash_file, read_history
from ippo_cli.runs.records import RunRecord
from ippo_cli.runs.run_files import READ_ERRORS, read_json_file

BLOCK_BYTES = 1 << 20
MAX_HASHED_BYTES = 1 << 24  # of a file with initial weights; models that a run makes are smaller
INITIAL = "initial"
UNHASHED_FILES = ("command.txt", "env.json")  # files of every start without a hash in the history


def find_missing_parts(run: RunRecord) -> list[str]:
    """One phrase for each incomplete file of a run, such as `metrics.jsonl has 3 of 91 rows`; empty for a whole run.

    Compares row counts with `run.json`, sizes with the manifests of checkpoints, and the configuration, the names of
    sample files and small initial weights with the hashes that the run recorded. Other hashes are not computed. Of a
    running run only rows and the files of its start are examined.
    """
    try:
        found = [*_missing_rows(run), *run.damaged_files]
    except ResumeError:
        return ["run.json cannot be read"]
    if run.status != "running":
        found += [*_damaged_checkpoints(run.folder / "checkpoints"), *_damaged_samples(run), *_damaged_initial(run)]
        try:
            history = read_history(run.folder)
        except (OSError, ValueError) as error:
            return [*found, f"{HISTORY} cannot be read: {error}"]
        found += [*_changed_start_files(run, history, found), *_absent_samples(run, history)]
    return found


def _missing_rows(run: RunRecord) -> Iterator[str]:
    """Rows are complete lines in the order of iterations: one for each, and one for an evaluation before the first."""
    iterations, evaluation = run.state.get("iterations"), run.state.get("evaluation")
    count = iterations if isinstance(iterations, int) else 0
    entries = evaluation.values() if isinstance(evaluation, dict) else ()
    has_initial = any(isinstance(entry, dict) and entry.get("iteration") == 0 for entry in entries)
    expected, present = count + has_initial, _count_lines(run.folder / "metrics.jsonl")
    if present < expected:
        yield f"metrics.jsonl has {present} of {expected} rows"
    if run.damaged_line is not None:
        yield f"metrics.jsonl is damaged at line {run.damaged_line}: later rows are not read"
    rows = [row["iteration"] for row in run.metrics]
    if repeated := [later for earlier, later in pairwise(rows) if later <= earlier]:
        yield f"metrics.jsonl repeats iteration {repeated[0]:.0f}"


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
        if not (folder / f"{pointer}.json").exists():
            continue  # pointers are optional
        name = read_json_file(folder, f"{pointer}.json", dict).value.get("checkpoint")
        if not isinstance(name, str):
            yield f"checkpoints/{pointer}.json cannot be read"
        elif name.startswith("step_") and not (folder / name).is_dir():
            yield f"checkpoints/{name}, which {pointer}.json names, is missing"


def _damaged_samples(run: RunRecord) -> Iterator[str]:
    """Sample files that are empty, do not begin with an object, or end within a line."""
    for sample in run.sample_files:
        name = f"samples/{sample.path.name}"
        with sample.path.open("rb") as file:
            first, size = file.read(1), file.seek(0, 2)
            file.seek(max(size - 1, 0))
            last = file.read(1)
        if not size:
            yield f"{name} is empty"
        elif last != b"\n":
            yield f"{name} ends within a line"
        elif first != b"{":
            yield f"{name} has no episodes"


def _absent_samples(run: RunRecord, history: list[HistoryLine]) -> Iterator[str]:
    """Sample files that the history names; a population copies a run without those before its iteration."""
    copied = read_json_file(run.folder, PARENT, dict).value.get("iteration")
    for line in history:
        if isinstance(copied, int) and line.iteration <= copied:
            continue
        names = [name for name in _recorded_files(line) if name.startswith("samples/")]
        yield from (f"{name} is missing" for name in names if not (run.folder / name).is_file())


def _changed_start_files(run: RunRecord, history: list[HistoryLine], found: list[str]) -> Iterator[str]:
    """Files of the last start that are missing, or differ from what the history recorded; none of those in `found`."""
    starts = [line for line in history if line.is_start]
    yield from (f"{name} is missing" for name in UNHASHED_FILES if starts and not (run.folder / name).is_file())
    for name, digest in _recorded_files(starts[-1]).items() if starts else ():
        file = run.folder / name
        if name not in START_FILES or any(text.startswith(f"{name} ") for text in found):
            continue
        if not file.is_file():
            yield f"{name} is missing"
        elif hash_file(file) != digest:
            yield f"{name} is not the file that {HISTORY} recorded"


def _recorded_files(line: HistoryLine) -> Mapping[str, str]:
    files = line.content.get("files")
    return files if isinstance(files, dict) else {}


def _damaged_initial(run: RunRecord) -> Iterator[str]:
    """Initial weights and their records. Weights that were not made by the run are elsewhere, and not examined."""
    root = run.folder / INITIAL
    if not root.is_dir():
        if (run.folder / HISTORY).is_file():
            yield f"{INITIAL}/ is missing"
        return
    records = {file.stem for file in root.glob("*.json")}
    yield from (f"{INITIAL}/{path.name}.json is missing" for path in sorted(root.iterdir()) if _lacks_record(path))
    for holder in sorted(records):
        record = read_json_file(root, f"{holder}.json", dict).value
        model, digests = record.get("model"), record.get("sha256")
        if not isinstance(model, str) or not isinstance(digests, dict):
            yield f"{INITIAL}/{holder}.json cannot be read"
        elif Path(model).parts[-2:] == (INITIAL, holder):
            yield from _damaged_weights(root / holder, digests)


def _lacks_record(path: Path) -> bool:
    return path.is_dir() and not path.with_name(f"{path.name}.json").is_file()


def _damaged_weights(folder: Path, digests: Mapping[str, str]) -> Iterator[str]:
    """Files with initial weights that are missing, and small ones with another hash than recorded."""
    for name, digest in digests.items():
        file, label = folder / name, f"{INITIAL}/{folder.name}/{name}"
        try:
            if file.stat().st_size <= MAX_HASHED_BYTES and hashlib.sha256(file.read_bytes()).hexdigest() != digest:
                yield f"{label} is not the file that the run started with"
        except READ_ERRORS:
            yield f"{label} is missing"
