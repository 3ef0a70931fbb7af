"""A problem of a machine and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Facts = Mapping[str, Any]
"""Facts of one section by name: plain values for JSON."""


@dataclass(frozen=True, slots=True)
class Problem:
    """`is_severe`: training cannot work; otherwise it is slower, or an option is unavailable."""

    text: str
    remedy: str
    is_severe: bool = False
