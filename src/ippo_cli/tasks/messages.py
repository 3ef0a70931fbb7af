"""Templates `messages:FIELD`: a field that is a conversation, such as `prompt` of TRL's and verl's data sets."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeGuard

from ippo_cli.config.errors import ConfigError

PREFIX = "messages:"  # what a template of this kind begins with
ROLES = ("system", "user", "assistant")
UNSUPPORTED_PARTS = ("tool_calls", "function_call", "images", "videos", "audio")  # parts of messages beside their text
Message = dict[str, str]  # role and content


class MessagesText(str):
    """A conversation as text, for logs and judges, that keeps its messages for a chat template."""

    messages: list[Message]

    def __new__(cls, messages: Sequence[Message]) -> MessagesText:
        """A lone user message is its content; of several each has its role before it."""
        lone = len(messages) == 1 and messages[0]["role"] == "user"
        lines = [message["content"] if lone else f"{message['role']}: {message['content']}" for message in messages]
        made = super().__new__(cls, "\n\n".join(lines))
        made.messages = list(messages)
        return made

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.messages,)


def is_messages(template: str) -> bool:
    """Whether a template takes a field as messages."""
    return template.startswith(PREFIX)


def messages_field(template: str) -> str:
    """The field that a template of this kind names."""
    return template.removeprefix(PREFIX).strip().removeprefix("{").removesuffix("}")


def is_conversation(value: Any) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    """Whether a value is a list of messages."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(isinstance(part, Mapping) and {"role", "content"} <= part.keys() for part in value)
    )


def read_messages(value: Any, setting: str) -> MessagesText:
    """The messages of a field's value: a list, or the JSON text of one. Raises `ConfigError`."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError):
            value = json.loads(value)
    if not is_conversation(value):
        raise ConfigError(
            setting,
            f"needs a list of messages with role and content, and an example has {value!r:.60}",
            "name a field that holds one",
        )
    for part in value:
        if unread := [key for key in UNSUPPORTED_PARTS if part.get(key)]:
            raise ConfigError(
                setting, f"has a message with {unread[0]}, and only texts are read", "write it as text by task.map"
            )
    messages = [{"role": str(part["role"]), "content": _content_text(part["content"], setting)} for part in value]
    if unknown_roles := [message["role"] for message in messages if message["role"] not in ROLES]:
        raise ConfigError(
            setting, f"has a message of role {unknown_roles[0]!r}", f"roles are {' '.join(ROLES)}; use task.map"
        )
    if messages[-1]["role"] != "user":
        raise ConfigError(
            setting,
            f"ends in a message of role {messages[-1]['role']!r}, and the agent answers the user",
            "remove the answer from these messages by task.map",
        )
    return MessagesText(messages)


def _content_text(content: Any, setting: str) -> str:
    """The text of a message; of a list of text parts all of them."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else [content]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(setting, f"has a message whose content is no text: {content!r:.60}", "use task.map")
    return "".join(map(str, texts))
