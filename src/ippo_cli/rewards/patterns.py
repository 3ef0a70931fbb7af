"""Matches users' regular expressions against generated texts in a child process with a timeout.

Catastrophic backtracking can take unbounded time, and Python cannot interrupt a match; a process can be killed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ippo_cli.processes.pool import CallFailed, ProcessPool

MATCH_TIMEOUT_S = 5.0
"""Timeout of one batch of texts; after a batch times out, of each text."""
MAX_TIMEOUTS = 8
"""Timeouts per batch after which the other texts are skipped, since the pattern is the cause."""


def match_texts(pattern: str, texts: Sequence[str]) -> list[bool]:
    """Whether the pattern matches each whole text; `.` also matches line ends. Runs in the child process."""
    compiled = re.compile(pattern, re.DOTALL)
    return [compiled.fullmatch(text) is not None for text in texts]


def find_last_matches(pattern: str, texts: Sequence[str]) -> list[str | None]:
    """The last match in each text, or its group if the pattern has one. Runs in the child process."""
    compiled = re.compile(pattern)
    found = [compiled.findall(text) for text in texts]
    return [own[-1] if own else None for own in found]


class PatternMatcher:
    """Runs `function(pattern, texts)` in a child process."""

    def __init__(
        self, pattern: str, key: str, limit_s: float = MATCH_TIMEOUT_S, function: Callable[..., list[Any]] = match_texts
    ) -> None:
        self.pattern, self.limit_s = pattern, limit_s
        self._processes = ProcessPool(f"{__name__}:{function.__name__}", key, 1, limit_s)

    def match(self, texts: Sequence[str]) -> list[Any]:
        """The function's result for each text, or a `CallFailed`."""
        batch_result = self._call(texts)
        if not isinstance(batch_result, Exception):
            return list(batch_result)
        if len(texts) == 1:
            return [batch_result]
        found: list[Any] = []
        num_timeouts = 0
        for text in texts:
            answer = self._call([text]) if num_timeouts < MAX_TIMEOUTS else batch_result
            num_timeouts += isinstance(answer, Exception)
            found.append(answer if isinstance(answer, Exception) else answer[0])
        return found

    def close(self) -> None:
        """Kill the child process."""
        self._processes.close()

    def _call(self, texts: Sequence[str]) -> list[Any] | Exception:
        [answer] = self._processes.call([((self.pattern, list(texts)), {})])
        if isinstance(answer, CallFailed):
            return CallFailed(f"matching {self.pattern!r:.80}: {answer}")
        return answer
