"""Files of the user's that a run reads: their hashes are kept in its folder, and compared when it is resumed."""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ippo_cli.config.checks import constrained_leaves
from ippo_cli.config.errors import storing
from ippo_cli.config.own_code import names_code
from ippo_cli.config.schema import Config
from ippo_cli.training.folder import NEXT, write_atomically

INPUTS = "inputs.json"


def input_files(config: Config) -> dict[Path, str]:
    """The files of code that a configuration names, each with the key that names it first; and their neighbours that
    they import."""
    found: dict[Path, str] = {}
    for key, value, _ in constrained_leaves(config):
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and names_code(text) and (file := _code_file(text)) is not None:
                for part in (file, *_imported(file)):
                    found.setdefault(part, key)
    return found


def record_inputs(folder: Path, files: Mapping[Path, str], *, resumed: bool) -> None:
    """Write down what the files hold; of a resumed run it is valid once its checkpoint is loaded."""
    known = {str(file): {"key": key, "sha256": _digest(file)} for file, key in files.items()}
    with storing(str(folder)):
        write_atomically(folder / f"{INPUTS}{NEXT if resumed else ''}", json.dumps(known, indent=1) + "\n")


def changed_inputs(folder: Path, files: Mapping[Path, str], keys: tuple[str, ...] = ("",)) -> list[str]:
    """A line for each file that holds something else than when the run was started last; `keys`: how the keys begin
    that matter. Nothing for runs that recorded no hashes."""
    try:
        known: dict[str, Any] = json.loads((folder / INPUTS).read_text())
        digests = {name: str(entry["sha256"]) for name, entry in known.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    return [
        f"{file} ({key}) has changed since this run was started: what follows uses it as it is now"
        for file, key in files.items()
        if key.startswith(keys) and digests.get(str(file), _digest(file)) != _digest(file)
    ]


def _digest(file: Path) -> str:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


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


def _imported(file: Path, seen: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Files beside a file that it imports, and those that they import."""
    for name in _imports(file):
        for neighbour in (file.parent / f"{name}.py", file.parent / name / "__init__.py"):
            if neighbour.is_file() and neighbour not in {*seen, file}:
                yield neighbour
                yield from _imported(neighbour, seen | {file, neighbour})


def _imports(file: Path) -> set[str]:
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
