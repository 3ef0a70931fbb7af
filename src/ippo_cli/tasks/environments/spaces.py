"""Write values of Gymnasium spaces as numbers, for environments without a known text format."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space, spaces

MAX_NUMBERS = 64  # largest array that is written as text
MASK = "action_mask"  # observation entry with the legal actions; excluded from the text


def unwritable_reason(space: Space) -> str | None:
    """Return why observations of a space cannot be written, or None."""
    if isinstance(space, spaces.Tuple | spaces.Dict):
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return next((reason for key, part in parts if key != MASK and (reason := unwritable_reason(part))), None)
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return f"has {size} numbers, but at most {MAX_NUMBERS} are written" if size > MAX_NUMBERS else None
    if isinstance(space, spaces.Discrete | spaces.Text):
        return None
    return f"is a {type(space).__name__}, which is not supported"


def format_numbers(space: Space, value: Any) -> str:
    """Write an observation as numbers separated by spaces; floats are rounded to three significant digits."""
    if isinstance(space, spaces.Dict):
        entries = [(key, part) for key, part in space.spaces.items() if key != MASK]
        if len(entries) == 1:
            return format_numbers(entries[0][1], value[entries[0][0]])
        return " ".join(f"{key}={format_numbers(part, value[key])}" for key, part in entries)
    if isinstance(space, spaces.Tuple):
        return " ".join(format_numbers(part, item) for part, item in zip(space.spaces, value, strict=True))
    if isinstance(space, spaces.Text):
        return value
    flat = np.asarray(value).ravel()
    if np.issubdtype(flat.dtype, np.floating):
        return " ".join(f"{number:.3g}" for number in flat.tolist())
    return " ".join(str(int(number)) for number in flat.tolist())
