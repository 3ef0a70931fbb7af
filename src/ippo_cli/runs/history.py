"""The history of a run: a chain of hashes over its starts, metric rows and sample files, one JSON line each.

`history.jsonl` has a line per start or resume (hashes of the configuration's files, versions, threads, device) and a
line per iteration (hashes of its row and of its sample files). Every line ends with `chain`, the SHA-256 of the chain
so far and of the line. Checkpoints store the newest value, and the hashes in their manifests cover it: an edit of any
earlier row, sample file or history line contradicts them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HISTORY = "history.jsonl"
START_FILES = ("config.yaml", "overrides.json", "inputs.json")
MODES = ("train", "eval")  # of sample files


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """One line of a history, with its number in the file, from 1."""

    number: int
    content: Mapping[str, Any]  # all but the chain
    chain: str

    @property
    def iteration(self) -> int:
        """Completed updates: of an iteration's line those after it, of a start those before it."""
        return int(self.content["iteration"])

    @property
    def is_start(self) -> bool:
        return "environment" in self.content


def extend_chain(chain: str, content: Mapping[str, Any]) -> str:
    """The chain after a line; an empty text is the chain before the first one."""
    return hashlib.sha256(f"{chain}{json.dumps(content, sort_keys=True)}".encode()).hexdigest()


def format_line(chain: str, content: Mapping[str, Any]) -> tuple[str, str]:
    """A line for the history, and the chain after it."""
    extended = extend_chain(chain, content)
    return json.dumps({**content, "chain": extended}) + "\n", extended


def start_content(folder: Path, iteration: int, environment: Mapping[str, Any], known_config: str) -> dict[str, Any]:
    """The content for a start after `iteration` iterations.

    It has the text of the configuration if the file's hash is not `known_config`, that of the start before: a later
    resume replaces the file, and earlier iterations can be executed again with the values that they had.
    """
    files = {name: hash_file(folder / name) for name in START_FILES if (folder / name).is_file()}
    content: dict[str, Any] = {"iteration": iteration, "environment": dict(environment), "files": files}
    if "config.yaml" in files and files["config.yaml"] != known_config:
        content["config"] = (folder / "config.yaml").read_text(encoding="utf-8")
    return content


def iteration_content(folder: Path, iteration: int, row: str) -> dict[str, Any]:
    """The content for an iteration: hashes of its line of `metrics.jsonl` and of the sample files on disk."""
    names = [f"samples/{mode}_{iteration:08d}.jsonl" for mode in MODES]
    files = {name: hash_file(folder / name) for name in names if (folder / name).is_file()}
    return {"iteration": iteration, "row": hash_text(row), "files": files}


def hash_file(file: Path) -> str:
    """The SHA-256 of a file."""
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def hash_text(text: str) -> str:
    """The SHA-256 of a text in UTF-8."""
    return hashlib.sha256(text.encode()).hexdigest()


def read_history(folder: Path) -> list[HistoryLine]:
    """The lines of a run's history; empty without one. Raises `ValueError` with the number of an unreadable line."""
    file = folder / HISTORY
    return list(_parse_lines(file.read_bytes())) if file.is_file() else []


def _parse_lines(data: bytes) -> Iterator[HistoryLine]:
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            content = json.loads(line)
            chain = str(content.pop("chain"))
            int(content["iteration"])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ValueError(f"line {number} is not a line of a history") from None
        yield HistoryLine(number, content, chain)


def history_bytes(folder: Path, chain: str) -> int | None:
    """The length of the history up to the line with this chain; None if no line has it."""
    file = folder / HISTORY
    if not chain or not file.is_file():
        return None if chain else 0
    end = 0
    for line in file.read_bytes().splitlines(keepends=True):
        end += len(line)
        try:
            if json.loads(line)["chain"] == chain:
                return end
        except (ValueError, KeyError, TypeError):
            continue
    return None


def last_config_hash(folder: Path) -> str:
    """The hash of the configuration at the last recorded start; empty without one."""
    try:
        starts = [line for line in read_history(folder) if line.is_start]
    except ValueError:
        return ""
    return str(starts[-1].content["files"].get("config.yaml", "")) if starts else ""
