"""The numbers of an algorithm that follow from earlier buffers, and are part of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmState:
    """Equal on all ranks."""

    kl_coef: Mapping[str, float] = field(default_factory=dict)  # adapted coefficients of the reward's KL term, by agent
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of parts of targets, by name
