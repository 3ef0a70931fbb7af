"""Tests that are marked `needs_vllm` are skipped where vLLM is absent."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

NO_VLLM = "vLLM is not installed here: scripts/vllm_environment.sh makes an environment for these tests"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("vllm") is not None:
        items.sort(key=lambda item: item.get_closest_marker("needs_first_engine") is None)
        return
    for item in items:
        if item.get_closest_marker("needs_vllm") is not None:
            item.add_marker(pytest.mark.skip(reason=NO_VLLM))
