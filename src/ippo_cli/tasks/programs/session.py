"""The calls of one episode: HTTP requests enter in the server's thread, the episode takes them in its own."""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ippo_cli.tasks.environment import Action
from ippo_cli.tasks.programs.chat_completions import ChatRequest, RequestError
from ippo_cli.tasks.programs.processes import ProgramEnd

MAX_WAITING_CALLS = 256
"""Calls of one key that may wait at the same time."""
CONCURRENT_CALLS_S = 0.01
"""After a call, how long others that a program makes at the same time are awaited."""
KEY_BYTES = 24


@dataclass(eq=False, slots=True)
class PendingCall:
    """A request that waits for its response. `respond` may be called from any thread, once."""

    request: ChatRequest
    respond: Callable[[Action | RequestError], None]


@dataclass(eq=False)
class CallSession:
    """The open calls of an episode, by agent in the order of arrival. Methods may be called from any thread."""

    agents: Collection[str]
    stop_strings: dict[str, Sequence[str]]  # of each agent's configuration
    max_new_tokens: Mapping[str, int] = field(default_factory=dict)  # of each agent's configuration
    key: str = field(default_factory=lambda: secrets.token_urlsafe(KEY_BYTES))
    is_shared: bool = False  # by programs that do not know each other
    num_calls: int = 0
    num_refused: int = 0  # requests that were answered by an error
    refused_path: str = ""  # of the first request to an address that is not served
    failure: str = ""  # why the episode cannot continue
    program_end: ProgramEnd | None = None
    is_closed: bool = False
    name: str = field(default_factory=lambda: secrets.token_hex(4))  # begins the ids of its responses

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[str, deque[PendingCall]] = {}

    def add(self, call: PendingCall) -> int:
        """Accept a call, and return its number. Raises `RequestError` if the episode is over or has too many calls."""
        with self._changed:
            if self.is_closed:
                raise RequestError("the episode of this key is over", status=401, code="invalid_api_key")
            if sum(map(len, self._waiting.values())) >= MAX_WAITING_CALLS:
                raise RequestError(f"{MAX_WAITING_CALLS} calls are waiting", status=429, code="rate_limit_exceeded")
            self.num_calls += 1
            self._waiting.setdefault(call.request.agent, deque()).append(call)
            self._changed.notify_all()
            return self.num_calls

    def abandon(self, call: PendingCall) -> None:
        """A client has closed the connection of a call: the episode fails, because its response would not be read."""
        agent = call.request.agent
        with self._changed:
            if self.is_shared:
                with suppress(KeyError, ValueError):
                    self._waiting[agent].remove(call)
            elif not self.is_closed:
                self.failure = (
                    f"the program closed the connection of a call of {agent} before it had the response; clients do so "
                    "after their own time limit, 600 s in OpenAI's: AsyncOpenAI(timeout=None)"
                )
            self._changed.notify_all()

    def count_refusal(self) -> None:
        """Count a request that was answered by an error."""
        with self._changed:
            self.num_refused += 1

    def refuse_path(self, path: str) -> None:
        """Count a request to an address that is not served."""
        with self._changed:
            self.num_refused += 1
            self.refused_path = self.refused_path or path

    def end(self, program_end: ProgramEnd) -> None:
        """The program has ended."""
        with self._changed:
            self.program_end = program_end
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait for a call, the program's end or a failure; False if none came within `seconds`.

        After the first call, agents that are called at the same time are awaited for `CONCURRENT_CALLS_S`.
        """
        with self._changed:
            if not self._changed.wait_for(self._has_news, seconds):
                return False
            until = time.monotonic() + CONCURRENT_CALLS_S
            while not (self.program_end or self.failure) and (left := until - time.monotonic()) > 0:
                if len([agent for agent, calls in self._waiting.items() if calls]) == len(self.agents):
                    break
                self._changed.wait(left)
            return True

    def _has_news(self) -> bool:
        return self.program_end is not None or bool(self.failure) or any(self._waiting.values())

    def take(self) -> dict[str, PendingCall]:
        """The oldest call of each agent."""
        with self._changed:
            return {agent: self._waiting[agent].popleft() for agent in self.agents if self._waiting.get(agent)}

    def take_all(self) -> list[PendingCall]:
        """All calls, by agent in the order of arrival."""
        with self._changed:
            calls = [call for waiting in self._waiting.values() for call in waiting]
            self._waiting.clear()
            return calls

    def close(self, reason: str = "the episode is over") -> None:
        """Answer all calls by an error, and accept no others."""
        with self._changed:
            self.is_closed = True
            calls = [call for waiting in self._waiting.values() for call in waiting]
            self._waiting.clear()
            self._changed.notify_all()
        for call in calls:
            call.respond(RequestError(reason, status=503, code="episode_over"))
