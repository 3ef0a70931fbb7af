"""Loads modules by file: scripts, and rank programs. Imported by path."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType


def loaded(file: Path, name: str) -> ModuleType:
    """Execute a file as a module with a unique name."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
