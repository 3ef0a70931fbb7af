"""Chat requests of a program to an agent, as observations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ChatMessage = Mapping[str, Any]
"""A message as in OpenAI's interface: role, content, and optionally tool_calls, tool_call_id, name and
reasoning_content."""


class ModelCall(str):
    """A request for a response, as an observation: its text is the content of the messages after the last response.

    The last message may be a response itself, of this agent or, in the history of a team, of another.
    """

    messages: Sequence[ChatMessage]
    tools: Sequence[Mapping[str, Any]]
    max_new_tokens: int | None  # at most this many, and no more than the agent's setting
    stop_strings: tuple[str, ...]  # in addition to the agent's
    template_args: Mapping[str, Any]  # of the chat template, in addition to the agent's
    reasoning_effort: str | None  # an argument of the chat template, if that reads it
    continues_final: bool  # the last message is the beginning of the response
    seed: int | None  # calls of an agent with one seed share random numbers; None: by the call's turn
    response: ChatMessage | None  # the message that the program received

    def __new__(
        cls,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        max_new_tokens: int | None = None,
        stop_strings: Sequence[str] = (),
        template_args: Mapping[str, Any] | None = None,
        reasoning_effort: str | None = None,
        continues_final: bool = False,
        seed: int | None = None,
        response: ChatMessage | None = None,
    ) -> ModelCall:
        last = max((place for place, part in enumerate(messages) if part["role"] == "assistant"), default=-1)
        new = messages[last + 1 :] or messages[-1:]
        lone = len(new) == 1 and new[0]["role"] == "user"
        lines = [part["content"] if lone else f"{part['role']}: {part['content']}" for part in new]
        call = super().__new__(cls, "\n\n".join(lines))
        call.messages, call.tools = list(messages), list(tools)
        call.max_new_tokens, call.stop_strings, call.seed = max_new_tokens, tuple(stop_strings), seed
        call.response, call.template_args = response, dict(template_args or {})
        call.reasoning_effort, call.continues_final = reasoning_effort, continues_final
        return call

    def __reduce__(self) -> Any:
        names = ("tools", "max_new_tokens", "stop_strings", "template_args", "seed", "response")
        names += ("reasoning_effort", "continues_final")
        return _rebuild_call, (self.messages, {name: getattr(self, name) for name in names})


def _rebuild_call(messages: Sequence[ChatMessage], settings: dict[str, Any]) -> ModelCall:
    return ModelCall(messages, **settings)
