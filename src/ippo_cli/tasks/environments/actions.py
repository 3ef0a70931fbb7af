"""Convert actions of a discrete space to text, and parse them from text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


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
