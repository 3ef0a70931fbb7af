"""What every test may rely on: one CPU thread, no accelerator, no network, and the shared modules of the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("DS_ACCELERATOR", "cpu")
# `spoken`: episodes of given texts; `small`: the smallest real run; `rows`; `checker` of shapes; `chats`: templates;
# `reference`: rows of episodes, slowly; `rank_scripts`: a process per rank
for folder in ("rewards", "training", "models", "formulas", "tasks", "rollout", "engine"):
    sys.path.insert(0, str(Path(__file__).parent / folder))

install_import_hook("ippo_cli.formulas", "checker.checked")  # before anybody imports them: every call is checked


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests first: what is broken everywhere shows at once."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)
