"""Leaves of nested plain values, by dotted names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def iter_leaves(plain: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted names and values of all leaves."""
    if isinstance(plain, dict) and plain:
        for key, value in plain.items():
            yield from iter_leaves(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, plain
