"""Environment tests share `making`, and are skipped if the environment packages are missing."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
PACKAGES = [name for name in ("gymnasium", "pettingzoo", "reasoning_gym") if find_spec(name) is None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skip(reason=f"needs ippo-cli[environments]: {' '.join(PACKAGES)} not installed")
    for item in items if PACKAGES else ():
        if Path(__file__).parent in item.path.parents and "needs_no_package" not in item.keywords:
            item.add_marker(missing)
