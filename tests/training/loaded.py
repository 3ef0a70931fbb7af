"""Modules by their files: scripts, and what ranks run. Tests import this file by its path."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def loaded(file: Path, name: str) -> ModuleType:
    """What a file defines, run now under a name that no other module has."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
