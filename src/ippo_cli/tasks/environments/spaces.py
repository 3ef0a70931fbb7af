"""Write values of Gymnasium spaces as numbers, and actions of discrete spaces as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
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


class ActionTexts:
    """Texts of actions: numbers, and, if names are known, names and unique first letters.

    A response must be exactly a name, first letter or number; case and surrounding white space are ignored. `left.` and
    `go left` are invalid.

        >>> texts = ActionTexts(4, names=("left", "down", "right", "up"))
        >>> texts.read(" Down "), texts.read("d"), texts.read("1"), texts.read("downwards"), texts.write(1)
        (1, 1, 1, None, 'd')
    """

    def __init__(self, count: int, *, start: int = 0, names: Sequence[str] = ()) -> None:
        if names and len(names) != count:
            raise ValueError(f"{len(names)} names for {count} actions")
        self.actions = range(start, start + count)
        named = dict(zip((name.casefold() for name in names), self.actions, strict=False))
        letters = Counter(name[0] for name in named)
        initials = {name[0]: action for name, action in named.items() if letters[name[0]] == 1}
        self._short = {action: letter for letter, action in initials.items()}
        self._read = {str(action): action for action in self.actions} | initials | named
        self.names = dict(zip(self.actions, names, strict=False))

    def read(self, text: str) -> int | None:
        """Return the action that a response names, or None."""
        return self._read.get(text.strip().casefold())

    def write(self, action: int) -> str:
        """Return the shortest text of an action: its letter, or else its number."""
        return self._short.get(action, str(action))

    def describe(self, actions: Sequence[int] | None = None) -> str:
        """List actions for a prompt: `left, down, right, up`, or numbers."""
        listed = self.actions if actions is None else actions
        return ", ".join(self.names.get(action, str(action)) for action in listed)
