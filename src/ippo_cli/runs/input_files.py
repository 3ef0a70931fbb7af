"""Hashes of a run's local code and data files, stored in its folder and compared on resume."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ippo_cli.config.checks import constrained_leaves
from ippo_cli.config.data import expand_pattern, is_pattern
from ippo_cli.config.errors import convert_storage_errors
from ippo_cli.config.python_names import is_code_reference
from ippo_cli.config.schema import Config
from ippo_cli.runs.folder import PENDING_SUFFIX, write_atomically
from ippo_cli.tasks.data_files import SUFFIXES, content_key, file_suffix

INPUTS = "inputs.json"
DATA_KEYS = ("task.train", "task.eval")
MAX_NAMED_FILES = 3  # in a warning


class InputSource(NamedTuple):
    """The first configuration key that names a file, and that key's value."""

    key: str
    source: str


InputSources = Mapping[Path, InputSource]


def input_files(config: Config, *, data: bool = True) -> dict[Path, InputSource]:
    """The code files that a configuration names, the sibling files that they import, and the local data files."""
    found: dict[Path, InputSource] = {}
    for key, value, _ in constrained_leaves(config):
        for text in value if isinstance(value, list) else [value]:
            if not isinstance(text, str):
                continue
            files: Iterable[Path] = ()
            if is_code_reference(text) or (key.endswith(".tools") and text.endswith(".py")):
                files = () if (file := _code_file(text)) is None else (file, *_imported_files(file))
            elif data and key in DATA_KEYS:
                files = _data_files(text)
            for part in files:
                found.setdefault(part, InputSource(key, text))
    return found


def record_inputs(folder: Path, inputs: InputSources, *, resumed: bool) -> None:
    """Write the files' hashes; for a resumed run they are pending until its checkpoint is loaded."""
    known = {str(file): {**found._asdict(), "sha256": _hash_file(file)} for file, found in inputs.items()}
    with convert_storage_errors(str(folder)):
        write_atomically(folder / f"{INPUTS}{PENDING_SUFFIX if resumed else ''}", json.dumps(known, indent=1) + "\n")


def changed_input_warnings(folder: Path, inputs: InputSources, keys: tuple[str, ...] = ("",)) -> list[str]:
    """A warning that lists the files that changed since the run was last started, or an empty list.

    `keys`: prefixes of the keys to compare. Empty for runs without recorded hashes.
    """
    try:
        recorded: dict[str, Any] = json.loads((folder / INPUTS).read_text(encoding="utf-8"))
        digests = {name: str(entry["sha256"]) for name, entry in recorded.items()}
        before = {
            name: InputSource(str(entry["key"]), str(entry.get("source", ""))) for name, entry in recorded.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    now = {str(file): found for file, found in inputs.items() if found.key.startswith(keys)}
    sources, sources_before = set(now.values()), set(before.values())
    states: dict[str, str] = {}
    for file, found in now.items():
        if file not in before:
            states |= {file: ", new"} if found in sources_before else {}  # otherwise the key's value has changed
        elif digests[file] != _hash_file(Path(file)):
            states[file] = ""
    states |= {file: ", missing" for file, found in before.items() if file not in now and found in sources}
    if not states:
        return []
    named = [f"{file} ({(now.get(file) or before[file]).key}{state})" for file, state in states.items()]
    more = f" and {len(named) - MAX_NAMED_FILES} more" if len(named) > MAX_NAMED_FILES else ""
    of_data = any((now.get(file) or before[file]).key in DATA_KEYS for file in states)
    order = "; the order of prompts and the held-out rows may differ from before" if of_data else ""
    return [
        f"changed since this run was started; the current version is used: {', '.join(named[:MAX_NAMED_FILES])}"
        f"{more}{order}"
    ]


def _hash_file(file: Path) -> str:
    try:
        return content_key(str(file))[-1]
    except OSError:
        return ""


def _data_files(source: str) -> list[Path]:
    """The local files of a data source; empty for a dataset on the hub."""
    with suppress(OSError, ValueError):  # the text is not a valid file name
        place = Path(source)
        if is_pattern(source):
            return [Path(file).absolute() for file in expand_pattern(source)]
        if place.is_dir():
            found = sorted(path for path in place.rglob("*") if path.is_file() and file_suffix(path.name) in SUFFIXES)
            return [path.absolute() for path in found]
        return [place.absolute()] if place.is_file() else []
    return []


def _code_file(text: str) -> Path | None:
    """The file of `path.py:name`, or of `module:name` outside installed packages."""
    place = text if text.endswith(".py") else text.rpartition(":")[0]
    if place.endswith(".py"):
        candidates = [Path(place)]
    else:
        roots = [Path.cwd(), *map(Path, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
        module = place.replace(".", "/")
        candidates = [root / name for root in roots for name in (f"{module}.py", f"{module}/__init__.py")]
    with suppress(OSError, ValueError):  # the text is not a valid file name
        return next((file.absolute() for file in candidates if file.is_file()), None)
    return None


def _imported_files(file: Path, seen: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Sibling files that a file imports, recursively."""
    for name in _imported_modules(file):
        for neighbour in (file.parent / f"{name}.py", file.parent / name / "__init__.py"):
            if neighbour.is_file() and neighbour not in {*seen, file}:
                yield neighbour
                yield from _imported_files(neighbour, seen | {file, neighbour})


def _imported_modules(file: Path) -> set[str]:
    """The top-level names of the modules that a file imports; empty if it cannot be parsed."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, ValueError, SyntaxError):
        return set()
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names |= {node.module} if node.module else {alias.name for alias in node.names}
    return {name.partition(".")[0] for name in names}
