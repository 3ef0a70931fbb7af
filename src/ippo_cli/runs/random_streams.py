"""Saves and restores the states of the global random generators (Python, NumPy, torch)."""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from typing import Any

import numpy
import torch


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
