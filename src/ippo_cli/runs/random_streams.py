"""Seeds the global random generators (Python, NumPy, torch), and saves and restores their states."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy
import torch


def seed_generators(seed: int) -> None:
    """Seed the global generators."""
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@contextmanager
def seeded_generators(seed: int) -> Iterator[None]:
    """Seed the global generators in a block, and restore their states after it."""
    before = rng_state()
    seed_generators(seed)
    try:
        yield
    finally:
        restore_rng(before)


def rng_state() -> dict[str, Any]:
    """The states of the global generators as JSON values (only user code uses them; ours are stateless)."""
    version, words, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = numpy.random.get_state()
    state = {
        "python": [version, list(words), gauss],
        "numpy": [
            str(kind),
            base64.b64encode(numpy.asarray(keys).tobytes()).decode(),
            int(position),
            int(has_gauss),
            float(cached),
        ],
        "torch": base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode(),
    }
    if torch.cuda.is_available():
        state["cuda"] = base64.b64encode(torch.cuda.get_rng_state().numpy().tobytes()).decode()
    return state


def restore_rng(state: Mapping[str, Any]) -> None:
    """Restore the states from `rng_state`."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    numpy.random.set_state(
        (kind, numpy.frombuffer(base64.b64decode(keys), dtype=numpy.uint32), position, has_gauss, cached)
    )
    torch.set_rng_state(torch.frombuffer(bytearray(base64.b64decode(state["torch"])), dtype=torch.uint8))
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.frombuffer(bytearray(base64.b64decode(state["cuda"])), dtype=torch.uint8))
