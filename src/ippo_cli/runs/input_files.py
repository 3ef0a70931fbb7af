"""Local files that a run reads, code and data: their hashes are in its folder, and are compared on a resume."""

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
MAX_NAMED_FILES = 3  # files of a warning


class InputSource(NamedTuple):
    """Why a file is an input: the key that names it first, and that key's value."""

    key: str
    source: str


InputSources = Mapping[Path, InputSource]


def input_files(config: Config, *, data: bool = True) -> dict[Path, InputSource]:
    """The files of code that a configuration names, with the neighbours that they import, and those of local data."""
    found: dict[Path, InputSource] = {}
    for key, value, _ in constrained_leaves(config):
        for text in value if isinstance(value, list) else [value]:
            if not isinstance(text, str):
                continue
            files: Iterable[Path] = ()
            if is_code_reference(text):
                files = () if (file := _code_file(text)) is None else (file, *_imported_files(file))
            elif data and key in DATA_KEYS:
                files = _data_files(text)
            for part in files:
                found.setdefault(part, InputSource(key, text))
    return found


def record_inputs(folder: Path, inputs: InputSources, *, resumed: bool) -> None:
    """Write down what the files hold; of a resumed run it is valid once its checkpoint is loaded."""
    known = {str(file): {**found._asdict(), "sha256": _hash_file(file)} for file, found in inputs.items()}
    with convert_storage_errors(str(folder)):
        write_atomically(folder / f"{INPUTS}{PENDING_SUFFIX if resumed else ''}", json.dumps(known, indent=1) + "\n")


def changed_input_warnings(folder: Path, inputs: InputSources, keys: tuple[str, ...] = ("",)) -> list[str]:
    """A warning that names the files that differ from those that the run was started with last, or nothing; `keys`:
    how the keys begin that matter. Nothing for runs that recorded no hashes."""
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
            states |= {file: ", new"} if found in sources_before else {}  # else the key has another value
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
        f"changed since this run was started, and used as it is now: {', '.join(named[:MAX_NAMED_FILES])}{more}{order}"
    ]


def _hash_file(file: Path) -> str:
    try:
        return content_key(str(file))[-1]
    except OSError:
        return ""


def _data_files(source: str) -> list[Path]:
    """The local files of a source of rows; none of a dataset on the hub."""
    with suppress(OSError, ValueError):  # a text that is no name of a file
        place = Path(source)
        if is_pattern(source):
            return [Path(file).absolute() for file in expand_pattern(source)]
        if place.is_dir():
            found = sorted(path for path in place.rglob("*") if path.is_file() and file_suffix(path.name) in SUFFIXES)
            return [path.absolute() for path in found]
        return [place.absolute()] if place.is_file() else []
    return []


def _code_file(text: str) -> Path | None:
    """The file of `path.py:name`, or of `module:name` outside of installed packages."""
    place = text.rpartition(":")[0]
    if place.endswith(".py"):
        candidates = [Path(place)]
    else:
        roots = [Path.cwd(), *map(Path, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
        module = place.replace(".", "/")
        candidates = [root / name for root in roots for name in (f"{module}.py", f"{module}/__init__.py")]
    with suppress(OSError, ValueError):  # a text that is no name of a file
        return next((file.absolute() for file in candidates if file.is_file()), None)
    return None


def _imported_files(file: Path, seen: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Files beside a file that it imports, and those that they import."""
    for name in _imported_modules(file):
        for neighbour in (file.parent / f"{name}.py", file.parent / name / "__init__.py"):
            if neighbour.is_file() and neighbour not in {*seen, file}:
                yield neighbour
                yield from _imported_files(neighbour, seen | {file, neighbour})


def _imported_modules(file: Path) -> set[str]:
    """The first parts of the modules that a file imports; none where it cannot be read as Python."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (OSError, ValueError, SyntaxError):
        return set()
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            names |= {node.module} if node.module else {alias.name for alias in node.names}
    return {name.partition(".")[0] for name in names}
