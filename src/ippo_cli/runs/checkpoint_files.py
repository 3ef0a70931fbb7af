"""Checkpoint files: manifest with sizes and sha256, atomic commit by rename, verification, and pointers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ippo_cli.config.errors import StorageError
from ippo_cli.engine import progress
from ippo_cli.runs.faults import fault_point
from ippo_cli.runs.folder import MANIFEST, VISIBILITY_TIMEOUT_S, list_checkpoints, write_atomically
from ippo_cli.runs.output import print_text

METHODS_FILE = "methods.json"
# Until version 0.1, states of methods were keys of state.json, and one had a file.
EARLIER_KEYS = {"role_baselines": "role_baseline", "recent_scores": "cross_agent", "partners": "opponent_pool"}
EARLIER_FILES = {"curriculum.json": "curriculum"}

FileManifest = dict[str, dict[str, Any]]
"""`bytes` and `sha256` by file name relative to the checkpoint."""


def read_pointer(folder: Path, name: str) -> Path | None:
    """The checkpoint that `latest.json` or `best.json` names, if it exists."""
    try:
        path = folder / json.loads((folder / f"{name}.json").read_text())["checkpoint"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # pointers are optional: the folders define which checkpoints exist
    return path if (path / MANIFEST).is_file() else None


def newest_intact_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint whose files all match its manifest; prints a warning for each damaged one."""
    for path in reversed(list_checkpoints(folder)):
        damage = find_damage(path)
        if damage is None:
            return path
        warn_damaged_checkpoint(path, damage)
    return None


def warn_damaged_checkpoint(path: Path, damage: str) -> None:
    """Print a warning that a damaged checkpoint is not used."""
    print_text(f"warning: {path} is damaged ({damage}); falling back to an older checkpoint")


def find_damage(path: Path, part: int = 0, parts: int = 1) -> str | None:
    """The first missing, additional or changed file of a checkpoint, as a message; None if it is intact.

    With several `parts`, each part verifies a share of the files, balanced by size; part 0 also checks the file list.
    """
    try:
        files = json.loads((path / MANIFEST).read_text())["files"]
        listed = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"{MANIFEST} cannot be read"
    if part == 0:
        present = {str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir()} - {MANIFEST}
        if present != set(listed):
            return "files are missing or additional: " + " ".join(sorted(present ^ set(listed))[:3])
    for name, (size, digest) in sorted(listed.items(), key=lambda entry: (-entry[1][0], entry[0]))[part::parts]:
        try:
            changed = (path / name).stat().st_size != size or file_sha256(path / name) != digest
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
        if changed:
            return f"{name} has changed"
    return None


def list_files(folder: Path, files: Iterable[Path]) -> FileManifest:
    """Flush files of this rank to disk; returns their sizes and sha256."""
    listed: FileManifest = {}
    for file in files:
        with file.open("rb") as handle:
            os.fsync(handle.fileno())
            digest = hashlib.file_digest(handle, "sha256").hexdigest()
            listed[str(file.relative_to(folder))] = {"bytes": handle.tell(), "sha256": digest}
        progress.heartbeat()
    return listed


def await_files(folder: Path, manifests: Sequence[FileManifest]) -> None:
    """Wait until this rank sees the files of all ranks in full size. Raises `StorageError` after a timeout.

    A network file system may show files late; ranks that do not share the folder never see them.
    """
    deadline = time.monotonic() + VISIBILITY_TIMEOUT_S
    while absent := list(_missing_files(folder, manifests)):
        if time.monotonic() > deadline:
            rank, name = absent[0]
            more = f" and {len(absent) - 1} more files" if len(absent) > 1 else ""
            raise StorageError(
                f"rank {rank} wrote {name}{more}, but rank 0 does not see it; checkpoints need a folder that all ranks "
                "share"
            )
        time.sleep(0.1)
    present = {str(file.relative_to(folder)) for file in folder.rglob("*") if not file.is_dir()}
    if others := sorted(present.difference(*manifests)):
        raise StorageError(f"{folder} has files that no rank wrote: " + " ".join(others[:3]))


def _missing_files(folder: Path, manifests: Sequence[FileManifest]) -> Iterator[tuple[int, str]]:
    """Files that this rank cannot open with the reported size, by rank; opening bypasses the NFS attribute cache."""
    for rank, listed in enumerate(manifests):
        for name, entry in listed.items():
            try:
                with (folder / name).open("rb") as file:
                    if os.fstat(file.fileno()).st_size == entry["bytes"]:
                        continue
            except OSError:
                pass
            yield rank, name


def commit_checkpoint(temporary: Path, final: Path, files: FileManifest) -> None:
    """Write the manifest of the flushed files, then rename the folder to its final name."""
    # The manifest has only this key, so that verification detects any flipped bit in it.
    write_atomically(temporary / MANIFEST, json.dumps({"files": files}, indent=1))
    fsync_folders(temporary, files)
    if final.exists():  # a damaged checkpoint of the same iteration, skipped by the resume
        shutil.rmtree(final)
    fault_point("save.rename")
    os.rename(temporary, final)
    fsync_folder(final.parent)


def write_pointer(folder: Path, name: str, checkpoint: str) -> None:
    write_atomically(folder / f"{name}.json", json.dumps({"checkpoint": checkpoint}) + "\n")


def fsync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_folders(root: Path, files: Iterable[str]) -> None:
    """Flush the names of these files, relative to `root`, and of their parent folders to disk."""
    for folder in {root, *(root / above for name in files for above in Path(name).parents)}:
        fsync_folder(folder)


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_method_states(checkpoint: Path) -> dict[str, Any]:
    """The states of a checkpoint's methods by name, also of the layout of earlier versions."""
    if (file := checkpoint / METHODS_FILE).is_file():
        return _restore_empty_states(json.loads(file.read_text()))
    stored = json.loads((checkpoint / "state.json").read_text())
    states = {name: stored[key] for key, name in EARLIER_KEYS.items() if key in stored}
    files = {name: checkpoint / key for key, name in EARLIER_FILES.items()}
    states |= {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}
    is_empty = {name: all(value in ([], {}) for value in state.values()) for name, state in states.items()}
    return {name: state for name, state in states.items() if not is_empty[name]}


def _restore_empty_states(stored: Any) -> Any:
    """Empty mappings in place of the mark for them that an earlier version wrote."""
    if not isinstance(stored, dict):
        return stored
    return {} if stored == {"__empty__": True} else {key: _restore_empty_states(value) for key, value in stored.items()}
