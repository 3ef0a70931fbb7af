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

ROLES = ("system", "user", "assistant", "tool")
LAST_ROLES = ("user", "tool")  # an agent answers a question, or continues after the result of a tool
UNSUPPORTED_PARTS = ("function_call", "images", "videos", "audio")  # message keys other than text
READ_KEYS = {"role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "reasoning"}
Message = dict[str, Any]  # role and content; calls of tools and their results have further keys


class MessagesText(str):
    """A conversation as text, for logs and judges; `messages` is the input of a chat template."""

    messages: list[Message]

    def __new__(cls, messages: Sequence[Message]) -> MessagesText:
        """Build the text: the content of a single user message, or else `role: content` of each message."""
        lone = len(messages) == 1 and messages[0]["role"] == "user"
        lines = [message["content"] if lone else f"{message['role']}: {_plain_text(message)}" for message in messages]
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
        and all(
            isinstance(part, Mapping) and "role" in part and ("content" in part or bool(part.get("tool_calls")))
            for part in value
        )
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
    messages = [_read_message(part, setting) for part in value]
    if unknown_roles := [message["role"] for message in messages if message["role"] not in ROLES]:
        raise ConfigError(
            setting,
            f"has a message of role {unknown_roles[0]!r}",
            f"roles are {' '.join(ROLES)}; change it with task.map",
        )
    called = False
    for message in messages:
        called = called or "tool_calls" in message
        if message["role"] == "tool" and not called:
            raise ConfigError(
                setting,
                "has a message of role 'tool' without a message with tool_calls before it",
                "put the call before its result, or change the role with task.map",
            )
    if messages[-1]["role"] not in LAST_ROLES:
        raise ConfigError(
            setting,
            f"ends in a message of role {messages[-1]['role']!r}, but the agent answers a user message or the result "
            "of a tool",
            "remove the last message with task.map",
        )
    return MessagesText(messages)


def has_tool_messages(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether messages have calls of tools or results."""
    return any("tool_calls" in message or message["role"] == "tool" for message in messages)


def _plain_text(message: Message) -> str:
    calls = [part["function"] for part in message.get("tool_calls", ())]
    texts = [f"{call['name']}({json.dumps(call['arguments'], ensure_ascii=False)})" for call in calls]
    return "\n".join([*([message["content"]] if message["content"] or not texts else []), *texts])


def _read_message(part: Mapping[str, Any], setting: str) -> Message:
    content = part.get("content")
    calls = part.get("tool_calls")
    message: Message = {
        "role": str(part["role"]),
        "content": _content_text("" if content is None and calls else content, setting),
    }
    if calls:
        if message["role"] != "assistant" or isinstance(calls, str) or not isinstance(calls, Sequence):
            raise ConfigError(
                setting,
                f"has tool_calls that are not a list in a message of role 'assistant': {calls!r:.60}",
                "correct the rows, or convert them with task.map",
            )
        message["tool_calls"] = [_read_call(call, setting) for call in calls]
    if message["role"] == "tool" and isinstance(part.get("tool_call_id"), str):
        message["tool_call_id"] = part["tool_call_id"]
    return message | _optional_texts(part, setting)


def _read_call(call: Any, setting: str) -> dict[str, Any]:
    """A call in the form that chat templates read: arguments are an object, which rows may write as JSON text."""
    function = call.get("function", call) if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if isinstance(arguments, str):
        with suppress(ValueError):
            arguments = json.loads(arguments)
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(name, str) or not isinstance(arguments, Mapping):
        raise ConfigError(
            setting,
            f"has a tool call without a function's name and an object of arguments: {call!r:.60}",
            'write it as {"type": "function", "function": {"name": ..., "arguments": {...}}}',
        )
    found = {"type": "function", "function": {"name": name, "arguments": dict(arguments)}}
    return found | ({"id": call["id"]} if isinstance(call.get("id"), str) else {})


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
