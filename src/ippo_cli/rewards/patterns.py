"""Regular expressions of the user's over texts that models wrote: some take longer than anyone waits.

Nothing in Python ends a match that has begun, so it is made in a process that can be killed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ippo_cli.rewards.processes import CallFailed, ProcessPool

MATCH_TIMEOUT_S = 5.0
"""How long all texts of a batch may take together; if they do not, each of them by itself."""
MAX_TIMEOUTS = 8
"""Texts that took too long, after which no more of a batch are looked at: it is the pattern."""


def match_texts(pattern: str, texts: Sequence[str]) -> list[bool]:
    """Whether the pattern matches the whole of each text; `.` stands for line ends too. Runs in the process."""
    compiled = re.compile(pattern, re.DOTALL)
    return [compiled.fullmatch(text) is not None for text in texts]


def find_last_matches(pattern: str, texts: Sequence[str]) -> list[str | None]:
    """The last that is found in each text: the group of a pattern that has one. Runs in the process."""
    compiled = re.compile(pattern)
    found = [compiled.findall(text) for text in texts]
    return [own[-1] if own else None for own in found]


class PatternMatcher:
    """A pattern, and the process in which `function(pattern, texts)` says something of each text."""

    def __init__(
        self, pattern: str, key: str, limit_s: float = MATCH_TIMEOUT_S, function: Callable[..., list[Any]] = match_texts
    ) -> None:
        self.pattern, self.limit_s = pattern, limit_s
        self._processes = ProcessPool(f"{__name__}:{function.__name__}", key, 1, limit_s)

    def read(self, texts: Sequence[str]) -> list[Any]:
        """What the function says of each text, or the `CallFailed` that says why that is not known."""
        batch_result = self._asked(texts)
        if not isinstance(batch_result, Exception):
            return list(batch_result)
        if len(texts) == 1:
            return [batch_result]
        found: list[Any] = []
        num_timeouts = 0
        for text in texts:
            answer = self._asked([text]) if num_timeouts < MAX_TIMEOUTS else batch_result
            num_timeouts += isinstance(answer, Exception)
            found.append(answer if isinstance(answer, Exception) else answer[0])
        return found

    def close(self) -> None:
        """End the process."""
        self._processes.close()

    def _asked(self, texts: Sequence[str]) -> list[Any] | Exception:
        [answer] = self._processes.call([((self.pattern, list(texts)), {})])
        if isinstance(answer, CallFailed):
            return CallFailed(f"matching {self.pattern!r:.80}: {answer}")
        return answer
