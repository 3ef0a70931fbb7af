"""How the actions of a discrete space are written as text and read from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


class ActionTexts:
    """Numbers always; names, and first letters that only one name has, where names are known.

    An answer names an action by its name, first letter or number, in either case, with white space around it. Anything
    else names none: `left.` and `go left` are no actions.

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
        """The action that an answer names, or None."""
        return self._read.get(text.strip().casefold())

    def write(self, action: int) -> str:
        """The shortest text of an action: its letter, or else its number."""
        return self._short.get(action, str(action))

    def told(self, actions: Sequence[int] | None = None) -> str:
        """Actions in a sentence: `left, down, right, up`, or numbers."""
        listed = self.actions if actions is None else actions
        return ", ".join(self.names.get(action, str(action)) for action in listed)
