"""`data.json` of a run's folder: sizes and hashes of its local data files, compared when the run is resumed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ippo_cli.config.data import expand_pattern, is_pattern
from ippo_cli.config.errors import storing
from ippo_cli.config.own_code import names_code
from ippo_cli.config.schema import JsonlConfig, TaskConfig
from ippo_cli.tasks.data_files import SUFFIXES, content_key, suffix_of
from ippo_cli.training.folder import write_atomically

FILE = "data.json"
NAMED = 3  # files of a warning
Record = Mapping[str, Mapping[str, str]]


def compare_data(folder: Path, config: TaskConfig) -> dict[str, str]:
    """A warning that names data files which changed since the run last began; what they are now is recorded."""
    if not isinstance(config, JsonlConfig):
        return {}
    now = {file: dict(zip(("bytes", "sha256"), content_key(file), strict=True)) for file in data_files(config)}
    before = _read(folder / FILE)
    with storing(str(folder / FILE)):
        write_atomically(folder / FILE, json.dumps(now, indent=2) + "\n")
    if before is None:
        return {}
    changed = [file for file in now if file in before and before[file] != now[file]]
    changed += [f"{file} (new)" for file in now if file not in before]
    changed += [f"{file} (not read now)" for file in before if file not in now]
    if not changed:
        return {}
    named = ", ".join(changed[:NAMED]) + (f" and {len(changed) - NAMED} more" if len(changed) > NAMED else "")
    return {
        "changed_data": f"data changed since this run began: {named}; prompts and held-out rows may differ; "
        "restore it, or start a new run"
    }


def data_files(config: JsonlConfig) -> list[str]:
    """The local files that the task's rows come from: data, and Python files of functions that make rows."""
    files: dict[str, None] = {}
    for listed in (config.train, config.eval):
        for source in listed if isinstance(listed, list) else [listed] if listed else []:
            files |= dict.fromkeys(_files_of(str(source)))
    for code in (config.map, config.filter):
        files |= dict.fromkeys(_files_of(code) if code and names_code(code) else ())
    return list(files)


def _files_of(source: str) -> list[str]:
    if names_code(source):
        file = Path(source.rpartition(":")[0])
        return [str(file.absolute())] if file.suffix == ".py" and file.is_file() else []
    if is_pattern(source):
        return [str(Path(file).absolute()) for file in expand_pattern(source)]
    if Path(source).is_dir():
        found = sorted(path for path in Path(source).rglob("*") if path.is_file() and suffix_of(path.name) in SUFFIXES)
        return [str(path.absolute()) for path in found]
    return [str(Path(source).absolute())] if Path(source).is_file() else []


def _read(file: Path) -> Record | None:
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return known if isinstance(known, dict) else None
