"""Values for JSON, which has no NaN and no infinity."""

from __future__ import annotations

import math
from typing import Any


def replace_non_finite(value: Any) -> Any:
    """A value for JSON, with non-finite numbers replaced by null."""
    if isinstance(value, dict):
        return {key: replace_non_finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [replace_non_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
