"""Prompt templates: text with `{field}` for fields of the example and of the conversation.

Other kinds begin with `jinja:` or `messages:`, or name a function as `path.py:name`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import PromptConfig
from ippo_cli.config.text import format_columns
from ippo_cli.tasks.filled_text import FilledText
from ippo_cli.tasks.messages import is_conversation, is_messages, messages_field, read_messages
from ippo_cli.types import Example
from ippo_cli.user_code.templates import (
    call_template_function,
    is_function,
    is_jinja,
    is_missing,
    jinja_fields,
    render_jinja,
)

ConversationValues = Mapping[str, str | None]
"""Conversation fields by name; None for messages that do not exist yet."""
NO_VALUES: ConversationValues = {}
OBSERVATION = "observation"  # the field for the environment's observation
CONVERSATION_FIELDS = ("turn", "transcript", "heard")  # fields for the messages so far
LAST_PREFIX = "agents."  # prefix of the field for an agent's last message, `agents.NAME`


def render_template(template: str, example: Example, setting: str, conversation: ConversationValues = NO_VALUES) -> str:
    """Replace each `{field}` of the template by the value in the example or the conversation; `{{` and `}}` are braces.

    Raises `ConfigError`.
    """
    if is_function(template):
        return call_template_function(template, example, _known_values(conversation), setting)
    if is_messages(template):
        if not re.fullmatch(r"task\.agents\.\w+\.template", setting):
            raise _template_error(
                setting, template, "is only supported for first prompts", "use messages: in task.agents.NAME.template"
            )
        return read_messages(_get_field(messages_field(template), example, setting, template), f"{setting}={template}")
    if is_jinja(template):
        return render_jinja(
            template, {**example, **_conversation_values(template, example, conversation, setting)}, setting
        )
    parts: list[tuple[str, bool]] = []
    for literal, field, form, conversion in _parse_template(template, setting):
        parts.append((literal, False))
        if form or conversion:
            raise ConfigError(
                f"{setting}={template!r}",
                f"formats the field {field!r}, but formats and conversions are not supported",
                f"write {{{field}}}, or {{{{ and }}}} for braces",
            )
        if field is not None:
            parts.append((_render_field(field, example, conversation, setting, template), True))
    return FilledText(parts)


def template_fields(template: str, setting: str) -> set[str]:
    """Return the fields that a template names; empty for a function, which can read any."""
    if is_function(template):
        return set()
    if is_jinja(template):
        return jinja_fields(template, setting)
    if is_messages(template):
        return {messages_field(template)}
    return {field for _, field, _, _ in _parse_template(template, setting) if field is not None}


def example_fields(config: PromptConfig, setting: str) -> list[str]:
    """Return the example fields in an agent's templates, in order of appearance."""
    named: list[str] = []
    for leaf, text in (("template", config.template), ("turn_template", config.turn_template or "")):
        if is_function(text) or is_jinja(text) or is_messages(text):
            named += sorted(template_fields(text, f"{setting}.{leaf}"))
        else:
            named += [field for _, field, _, _ in _parse_template(text, f"{setting}.{leaf}") if field is not None]
    return [f for f in dict.fromkeys(named) if f != OBSERVATION and not is_conversation_field(f)]


def first_message(
    agent: str, config: PromptConfig, example: Example, conversation: ConversationValues | None = None
) -> str:
    """Render an agent's first message for an example.

    Without `conversation`, as before an episode, conversation fields are empty.
    """
    setting = f"task.agents.{agent}.template"
    if conversation is None:
        words = (
            {*CONVERSATION_FIELDS, OBSERVATION}
            if is_function(config.template)
            else template_fields(config.template, setting)
        )
        words -= set(example)
        conversation = {word: "" for word in words if word == OBSERVATION or is_conversation_field(word)}
        conversation |= {"turn": "1"} if "turn" in conversation else {}
    return render_template(config.template, example, setting, conversation)


def first_message_size(agent: str, config: PromptConfig) -> Callable[[Example], int] | None:
    """A function that returns the bytes of an agent's first message without rendering it; None if it must be rendered.

    A template of literal text and fields of the example has the sizes of its parts.
    """
    template, setting = config.template, f"task.agents.{agent}.template"
    if is_function(template) or is_jinja(template) or is_messages(template):
        return None
    parsed = _parse_template(template, setting)
    names = [field for _, field, _, _ in parsed if field is not None]
    if any(form or conversion for _, _, form, conversion in parsed) or any(
        field == OBSERVATION or is_conversation_field(field) for field in names
    ):
        return None
    literal = sum(len(text.encode()) for text, _, _, _ in parsed)

    def size(example: Example) -> int:
        total = literal
        for field in names:  # a plan calls this for every row
            text = example.get(field)
            if type(text) is not str:
                text = _render_field(field, example, NO_VALUES, setting, template)
            total += len(text) if text.isascii() else len(text.encode())
        return total

    return size


def is_conversation_field(field: str) -> bool:
    """Whether a field refers to messages of the conversation."""
    return field in CONVERSATION_FIELDS or field.startswith(LAST_PREFIX)


def can_read_others(template: str, setting: str, own: Collection[str]) -> bool:
    """Whether a template can read messages other than the fields in `own`; always true for a function."""
    if is_function(template):
        return True
    return any(is_conversation_field(field) for field in template_fields(template, setting) - set(own))


def _known_values(conversation: ConversationValues) -> dict[str, str]:
    """The conversation fields with a value."""
    return {word: text for word, text in conversation.items() if text is not None}


def _conversation_values(
    template: str, example: Example, conversation: ConversationValues, setting: str
) -> dict[str, str]:
    """Return the conversation fields for a Jinja template. Raises `ConfigError` for a name that the example has."""
    named = template_fields(template, setting)
    for word in named & set(conversation):
        _render_field(word, example, conversation, setting, template)
    return _known_values(conversation)


def _render_field(field: str, example: Example, conversation: ConversationValues, setting: str, template: str) -> str:
    if field in conversation:
        if field in example:
            raise _template_error(
                setting,
                template,
                f"names {field!r}, which is a field of both the examples and the conversation",
                "rename that field of the examples, for example with task.columns",
            )
        text = conversation[field]
        if text is None:
            raise _template_error(
                setting,
                template,
                f"names {field!r}, but that agent has no message yet",
                "name an agent that acts earlier, or write {transcript}",
            )
        return text
    value = _get_field(field, example, setting, template, conversation)
    if isinstance(value, Collection) and not isinstance(value, str):
        kind = "bytes" if isinstance(value, bytes) else "an object" if isinstance(value, Mapping) else "a list"
        raise _template_error(
            setting,
            template,
            f"writes the field {field!r} as text, but it is {kind} in an example",
            _field_hint(field, value, setting),
        )
    return str(value)


def _get_field(
    field: str, example: Example, setting: str, template: str, conversation: ConversationValues = NO_VALUES
) -> Any:
    """Return a field of an example. Raises `ConfigError` if it is missing or null."""
    if field not in example:
        raise _template_error(setting, template, *_unknown_field_error(field, example, conversation))
    value = example[field]
    if is_missing(value):  # else the text would be "None" or "nan"
        raise _template_error(
            setting,
            template,
            f"names the field {field!r}, which is {'null' if value is None else 'NaN'} in an example",
            "fill it in, or exclude such examples with task.filter",
        )
    return value


def _field_hint(field: str, value: Any, setting: str) -> str:
    """Suggest a template that supports a list or an object."""
    if is_conversation(value):
        if setting.endswith(".template"):
            return f"use {setting}=messages:{field}, which reads it as messages"
        return f"write 'jinja:{{{{ {field}[-1].content }}}}' for the text of the last message"
    if isinstance(value, Mapping):
        inside = next(iter(value), "KEY")
        return f"use task.columns.{field}={field}.{inside} for one of its values, or 'jinja:{{{{ {field} | tojson }}}}'"
    if isinstance(value, bytes):
        return "convert it to text with task.map"
    if setting.startswith("reward."):  # lists of tests or prompts are joined by lines
        return f"write \"jinja:{{{{ {field} | join('\\n') }}}}\""
    return f"write 'jinja:{{{{ {field} | join(\", \") }}}}', or task.columns.{field}={field}.0 for its first item"


def _unknown_field_error(field: str, example: Example, conversation: ConversationValues) -> tuple[str, str]:
    """Return rule and remedy for an unknown field."""
    if field.startswith(LAST_PREFIX) and conversation:
        agent_fields = " ".join(word for word in conversation if word.startswith(LAST_PREFIX))
        return f"names {field!r}, but there is no such agent", f"available fields: {agent_fields}"
    if is_conversation_field(field):
        return (
            f"names {field!r}, but there are no messages yet",
            "use task.protocol=sequential or dialogue, or increase task.num_turns",
        )
    words = f"; fields of the conversation: {' '.join(conversation)}" if conversation else ""
    return f"names the field {field!r}, which examples do not have", "their fields: " + format_columns(example) + words


def unknown_fields_error(fields: Sequence[str], example: Example, setting: str, template: str) -> ConfigError:
    """The error for fields of a template that no example has."""
    names = f"field{'s' if len(fields) > 1 else ''} {', '.join(map(repr, fields))}"
    rule = f"names the {names}, which examples do not have"
    return _template_error(setting, template, rule, "their fields: " + format_columns(example))


def _template_error(setting: str, template: str, rule: str, remedy: str) -> ConfigError:
    return ConfigError(f"{setting}={template!r}", rule, remedy)


@cache  # rendering is called for every row, and parsing dominates its cost
def _parse_template(template: str, setting: str) -> tuple[tuple[str, str | None, str | None, str | None], ...]:
    """Parse a template into (literal text, field, format, conversion)."""
    try:
        return tuple(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(
            f"{setting}={template!r}", f"is not a valid template ({error})", "write {{ and }} for braces"
        ) from error
