"""Templates `messages:FIELD`: a field with a list of messages, such as `prompt` in TRL and verl datasets."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeGuard

from ippo_cli.config.agent_checks import MESSAGES_PREFIX
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.text import escape_controls

_log = logging.getLogger(__name__)
_reported: set[tuple[str, str]] = set()  # settings and keys of messages that were reported

ROLES = ("system", "user", "assistant")
UNSUPPORTED_PARTS = ("tool_calls", "function_call", "images", "videos", "audio")  # message keys other than text
READ_KEYS = {"role", "content", "name", "reasoning_content", "reasoning"}
Message = dict[str, Any]  # role and content; calls of tools and their results have further keys


class MessagesText(str):
    """A conversation as text, for logs and judges; `messages` is the input of a chat template."""

    messages: list[Message]

    def __new__(cls, messages: Sequence[Message]) -> MessagesText:
        """Build the text: the content of a single user message, or else `role: content` of each message."""
        lone = len(messages) == 1 and messages[0]["role"] == "user"
        lines = [message["content"] if lone else f"{message['role']}: {message['content']}" for message in messages]
        text = super().__new__(cls, "\n\n".join(lines))
        text.messages = list(messages)
        return text

    def __getnewargs__(self) -> tuple[Any, ...]:
        return (self.messages,)


def is_messages(template: str) -> bool:
    """Whether a template has the form `messages:FIELD`."""
    return template.startswith(MESSAGES_PREFIX)


def messages_field(template: str) -> str:
    """Return the field that a `messages:` template names."""
    return template.removeprefix(MESSAGES_PREFIX).strip().removeprefix("{").removesuffix("}")


def is_conversation(value: Any) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    """Whether a value is a list of messages."""
    return (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and bool(value)
        and all(isinstance(part, Mapping) and {"role", "content"} <= part.keys() for part in value)
    )


def read_messages(value: Any, setting: str) -> MessagesText:
    """Parse a field's value: a list of messages, or its JSON text. Raises `ConfigError`."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError):
            value = json.loads(value)
    if not is_conversation(value):
        raise ConfigError(
            setting,
            f"needs a list of messages with role and content, and an example has {value!r:.60}",
            "name a field that holds such a list",
        )
    for part in value:
        if unread := [key for key in UNSUPPORTED_PARTS if part.get(key)]:
            raise ConfigError(
                setting,
                f"has a message with {unread[0]}, but only text is supported",
                "convert it to text with task.map",
            )
        _report_ignored_keys(part, setting)
    messages = [
        {
            "role": str(part["role"]),
            "content": _content_text(part["content"], setting),
            **_optional_texts(part, setting),
        }
        for part in value
    ]
    if unknown_roles := [message["role"] for message in messages if message["role"] not in ROLES]:
        raise ConfigError(
            setting,
            f"has a message of role {unknown_roles[0]!r}",
            f"roles are {' '.join(ROLES)}; change it with task.map",
        )
    if messages[-1]["role"] != "user":
        raise ConfigError(
            setting,
            f"ends in a message of role {messages[-1]['role']!r}, but the agent answers a user message",
            "remove the last message with task.map",
        )
    return MessagesText(messages)


def _optional_texts(message: Mapping[str, Any], setting: str) -> dict[str, str]:
    """The name and the thought of a message. Raises `ConfigError` for values that are no text."""
    texts: dict[str, str] = {}
    for key in ("name", "reasoning_content", "reasoning"):
        text = message.get(key)
        if not isinstance(text, str | None):
            rule = f"has a message with {key}={text!r:.60}, which is no text"
            raise ConfigError(setting, rule, "convert it to text with task.map")
        if text is not None:
            texts.setdefault(key.replace("reasoning_content", "reasoning"), text)
    if "reasoning" in texts:  # two names of one text
        texts["reasoning_content"] = texts.pop("reasoning")
    return texts


def _report_ignored_keys(message: Mapping[str, Any], setting: str) -> None:
    """Warn once of each key of messages that has no effect; Arrow writes null for keys that a message lacks."""
    for key in message.keys() - READ_KEYS:
        if message[key] not in (None, "", [], {}) and (setting, key) not in _reported:
            _reported.add((setting, key))
            _log.warning("%s has messages with %s, which has no effect", setting, escape_controls(str(key)[:40]))


def _content_text(content: Any, setting: str) -> str:
    """Return the text of a message; text parts are joined."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, Sequence) else [content]
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
        raise ConfigError(
            setting, f"has a message with content that is not text: {content!r:.60}", "convert it with task.map"
        )
    return "".join(map(str, texts))
