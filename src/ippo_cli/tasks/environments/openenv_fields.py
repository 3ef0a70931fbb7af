"""Responses to actions and observations to texts, by the JSON schemas of an OpenEnv server or by user functions."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import OpenEnvConfig
from ippo_cli.tasks.environment import InvalidReturn
from ippo_cli.user_code.load import load_function

RESERVED = ("metadata", "done", "reward")  # fields of every action or observation
SCALARS = ("string", "integer", "number", "boolean")
ANY = "any"  # a field without a type

WriteAction = Callable[[str, Mapping[str, Any]], "Mapping[str, Any] | None"]
"""Converts a response to an action; None if the response has no action. Its second argument is the last observation."""
ReadObservation = Callable[[Mapping[str, Any]], str]


class Fields:
    """The fields of an action or observation: their types and their values, if these are listed."""

    def __init__(self, schema: Mapping[str, Any] | None) -> None:
        schema = schema if isinstance(schema, Mapping) else {}
        definitions = schema.get("$defs", {})
        properties = {
            name: _resolve(part, definitions)
            for name, part in (schema.get("properties") or {}).items()
            if name not in RESERVED
        }
        self.types = {name: _type_name(part) for name, part in properties.items()}
        self.choices = {name: _choices(part) for name, part in properties.items()}
        self.required = [name for name in schema.get("required") or () if name in properties]

    def __str__(self) -> str:
        return ", ".join(f"{name} ({kind})" for name, kind in self.types.items()) or "none"


def make_action_writer(config: OpenEnvConfig, fields: Fields) -> tuple[WriteAction, Sequence[str]]:
    """Return the conversion of responses, and the legal responses if the schema lists them. Raises `ConfigError`."""
    if config.action_function is not None:
        return _load_action_function(config.action_function), ()
    name = config.action_field or _only_action_field(config, fields)
    if fields.types and name not in fields.types:
        raise ConfigError(f"task.action_field={name}", "is no field of the server's actions", f"it has: {fields}")
    kind, choices = fields.types.get(name, ANY), fields.choices.get(name, ())
    if kind not in (*SCALARS, ANY):
        raise ConfigError(
            f"task.action_field={name}", f"has the type {kind}", "write a function: task.action_function=path.py:name"
        )
    others = [other for other in fields.required if other != name]
    if others:
        raise ConfigError(
            f"task.action_field={name}",
            f"is not the only field without a default ({', '.join(others)})",
            "write a function that returns all of them: task.action_function=path.py:name",
        )

    def write(text: str, _: Mapping[str, Any]) -> Mapping[str, Any] | None:
        value = _parse_value(text, kind, choices)
        return None if value is None else {name: value}

    return write, choices


def make_observation_reader(config: OpenEnvConfig, fields: Fields) -> ReadObservation:
    """Return the conversion of observations. Raises `ConfigError`."""
    if config.observation_function is not None:
        return _load_observation_function(config.observation_function)
    name = config.observation_field or _only_observation_field(config, fields)
    if fields.types and name not in fields.types:
        raise ConfigError(
            f"task.observation_field={name}", "is no field of the server's observations", f"it has: {fields}"
        )

    def read(observation: Mapping[str, Any]) -> str:
        if name not in observation:
            raise InvalidReturn(f"the observation has no field {name}; it has: {', '.join(observation)}")
        value = observation[name]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    return read


def _only_action_field(config: OpenEnvConfig, fields: Fields) -> str:
    named = fields.required or [name for name, kind in fields.types.items() if kind == "string"]
    if len(named) == 1 and fields.types[named[0]] in SCALARS:
        return named[0]
    raise ConfigError(
        "task.action_field=null",
        f"needs actions with one text or number; the fields of {config.url} are: {fields}",
        "set task.action_field=NAME, or task.action_function=path.py:name, which returns the action as a dict",
    )


def _only_observation_field(config: OpenEnvConfig, fields: Fields) -> str:
    texts = [name for name, kind in fields.types.items() if kind == "string"]
    if len(texts) == 1 and all(kind in SCALARS for kind in fields.types.values()):
        return texts[0]
    raise ConfigError(
        "task.observation_field=null",
        f"needs observations with one text and otherwise numbers; the fields of {config.url} are: {fields}",
        "set task.observation_field=NAME, or task.observation_function=path.py:name, which returns the text",
    )


def _load_action_function(name: str) -> WriteAction:
    function = load_function(name, "task.action_function")
    takes_observation = _num_required(function) > 1

    def write(text: str, observation: Mapping[str, Any]) -> Mapping[str, Any] | None:
        action = function(text, dict(observation)) if takes_observation else function(text)
        if hasattr(action, "model_dump"):  # an Action of the environment's package
            action = action.model_dump(mode="json")
        if not (action is None or isinstance(action, Mapping)):
            raise InvalidReturn(f"{name} must return the action as a dict, or None, not a {type(action).__name__}")
        return action

    return write


def _load_observation_function(name: str) -> ReadObservation:
    function = load_function(name, "task.observation_function")

    def read(observation: Mapping[str, Any]) -> str:
        text = function(dict(observation))
        if not isinstance(text, str):
            raise InvalidReturn(f"{name} must return a text, not a {type(text).__name__}")
        return text

    return read


def _num_required(function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions written in C have no signature
        return 1
    return sum(part.kind <= part.POSITIONAL_OR_KEYWORD and part.default is part.empty for part in parameters)


def _resolve(part: Any, definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    """A field's schema without references, and without null as an alternative."""
    if not isinstance(part, Mapping):
        return {}
    if "$ref" in part:
        return _resolve(definitions.get(str(part["$ref"]).rpartition("/")[2], {}), definitions)
    options = [option for option in part.get("anyOf") or () if option != {"type": "null"}]
    return _resolve(options[0], definitions) if len(options) == 1 else part


def _type_name(part: Mapping[str, Any]) -> str:
    if "type" in part or not part.get("anyOf"):
        return str(part.get("type", "string" if _choices(part) else ANY))
    return "union"


def _choices(part: Mapping[str, Any]) -> Sequence[str]:
    listed = part.get("enum") or ([part["const"]] if "const" in part else ())
    return tuple(listed) if all(isinstance(choice, str) for choice in listed) else ()


def _parse_value(text: str, kind: str, choices: Sequence[str]) -> Any:
    """The value of a field, or None if the text has none. Texts are unchanged, unless the schema lists the values."""
    if choices:
        wanted = text.strip().casefold()
        return next((choice for choice in choices if choice.casefold() == wanted), None)
    try:
        if kind == "integer":
            return int(text)
        if kind == "number":
            number = float(text)
            return number if math.isfinite(number) else None
    except ValueError:
        return None
    if kind == "boolean":
        return {"true": True, "false": False}.get(text.strip().casefold())
    return text
