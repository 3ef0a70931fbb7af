"""Tools that are Python functions: their schemas from type hints and docstrings, and their calls in child processes.

A file offers the callables in its list `TOOLS`; without one, all public callables that it defines, cached, partial and
decorated ones included. The schema is that of `get_json_schema` of transformers, or the callable's attribute `schema`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, MappingView, Sequence
from dataclasses import fields, is_dataclass
from datetime import date
from enum import Enum, EnumType
from functools import partial
from itertools import islice
from types import ModuleType
from typing import Any, get_args, get_origin, get_type_hints

from ippo_cli.config.errors import ConfigError
from ippo_cli.tasks.tools.tool import Tool
from ippo_cli.user_code.load import load_function, load_module

MAX_RESULT_CHARACTERS = 8192  # longer results are cut: they would fill the context of most models
CALLER = f"{__name__}:FunctionCaller"
Function = Callable[..., Any]
_REPRESENTATION = re.compile(r"<[a-z].*>", re.DOTALL)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def load_python_tools(reference: str, setting: str) -> list[Tool]:
    """Load the tools of `file.py`, `file.py:name` or `module:name`. Raises `ConfigError`."""
    if not reference.endswith(".py"):
        function = load_function(reference, setting)
        return [_make_tool(function, reference, setting)]
    module = load_module(reference, f"{setting}={reference}")
    functions = _offered_functions(module, f"{setting}={reference}")
    return [_make_tool(function, f"{reference}:{name}", setting) for name, function in functions.items()]


def _offered_functions(module: ModuleType, setting: str) -> dict[str, Function]:
    """The callables that a file offers, by name."""
    listed = getattr(module, "TOOLS", None)
    if listed is None:
        offered = {name: value for name, value in vars(module).items() if _is_defined_in(module, name, value)}
        if not offered:
            raise ConfigError(setting, "defines no public function", "define functions with type hints and docstrings")
        return offered
    if not isinstance(listed, list) or not listed:
        raise ConfigError(setting, f"has TOOLS={listed!r:.60}", "TOOLS must be a list of functions of that file")
    offered = {}
    for function in listed:
        name = next((name for name, value in vars(module).items() if value is function), None)
        if name is None or not callable(function):
            raise ConfigError(
                setting,
                f"lists {function!r:.60} in TOOLS, which is not a function with a name in that file",
                "define it there with def",
            )
        offered[name] = function
    return offered


def _is_defined_in(module: ModuleType, name: str, value: Any) -> bool:
    """Whether a public name of a module is a callable of its own, and neither a class nor an imported function."""
    if name.startswith("_") or not callable(value) or inspect.isclass(value):
        return False
    inner = _inner_function(value)
    if inspect.isroutine(inner):
        # A function from within another one is the result of a call in this file, such as of a decorator.
        return inner.__module__ == module.__name__ or "<locals>" in inner.__qualname__
    return type(inner).__module__ == module.__name__


def _inner_function(function: Function) -> Any:
    """The function inside caches, decorators and partial objects."""
    return _layers(function)[-1]


def _layers(function: Function) -> list[Any]:
    """A function with caches, decorators and partial objects, from the outermost to the function inside."""
    layers: list[Any] = [function]
    while True:
        inner = layers[-1]
        inner = inner.func if isinstance(inner, partial) else getattr(inner, "__wrapped__", None)
        if inner is None:
            return layers
        layers.append(inner)


def _make_tool(function: Function, reference: str, setting: str) -> Tool:
    name = reference.rpartition(":")[2]
    layers = _layers(function)
    if inspect.isclass(layers[-1]):
        rule = "is a class, and a call would return an object of it"
        raise ConfigError(f"{setting}={reference}", rule, "name a function, or an object with __call__")
    if inspect.iscoroutinefunction(layers[-1]) and any(hasattr(layer, "cache_info") for layer in layers):
        rule = "caches an async function, and its coroutine can be awaited only once"
        raise ConfigError(f"{setting}={reference}", rule, "cache a function without async, or remove the cache")
    return Tool(name=name, schema=_read_schema(function, name, reference, setting), source=reference)


def _read_schema(function: Function, name: str, reference: str, setting: str) -> dict[str, Any]:
    """The JSON schema of a function in the form of chat templates. Raises `ConfigError`."""
    own: Any = getattr(function, "schema", None)
    try:
        if own is None:
            parts = inspect.signature(function).parameters.values()
            if any(part.kind in (part.VAR_POSITIONAL, part.VAR_KEYWORD) for part in parts):
                raise TypeError(
                    f"{name}{inspect.signature(function)} takes any number of arguments, and a call has names"
                )
            from transformers.utils.chat_template_utils import get_json_schema

            schema = get_json_schema(function if inspect.isfunction(function) else _plain_function(function, name))
        else:
            schema = own if own.get("type") == "function" else {"type": "function", "function": own}
            _check_schema(schema["function"], name)
        text = json.dumps(schema, ensure_ascii=False)
        text.encode()  # half of a surrogate pair cannot be tokenized
        return json.loads(text)
    except Exception as error:  # of transformers, with its own classes; or of a schema that is none
        code = getattr(_inner_function(function), "__code__", None)
        place = "" if code is None else f", line {code.co_firstlineno}"
        raise ConfigError(
            f"{setting}={reference}",
            f"has no usable JSON schema{place} ({' '.join(str(error).split())})",
            "give every argument a type hint and a description under `Args:` in the docstring, or set the function's "
            "attribute `schema`",
        ) from error


def _plain_function(function: Function, name: str) -> Function:
    """A function with the name, hints, docstring and free parameters of a callable, as `get_json_schema` reads them."""
    inner = _inner_function(function)
    described = inner if inspect.isroutine(inner) else type(inner).__call__
    parameters = [part for part in inspect.signature(function).parameters.values() if part.name not in _bound(function)]
    hints = get_type_hints(described)

    def plain() -> None: ...

    plain.__name__ = name
    plain.__doc__ = inspect.getdoc(described) or inspect.getdoc(inner)
    free = {"return", *(part.name for part in parameters)}
    plain.__annotations__ = {key: hint for key, hint in hints.items() if key in free}
    plain.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return plain


def _bound(function: Function) -> set[str]:
    """The keyword arguments that partial objects set: no part of the schema, and no argument of a call."""
    names: set[str] = set()
    while not inspect.isroutine(function):
        names |= set(function.keywords) if isinstance(function, partial) else set()
        inner = function.func if isinstance(function, partial) else getattr(function, "__wrapped__", None)
        if inner is None:
            break
        function = inner
    return names


def _check_schema(schema: Mapping[str, Any], name: str) -> None:
    if schema.get("name") != name:
        raise ValueError(f"its name is {schema.get('name')!r} and the function's name is {name!r}")
    if not isinstance(schema.get("parameters"), Mapping):
        raise ValueError("it has no parameters")


class FunctionCaller:
    """Calls functions in a child process, which imports them when it starts."""

    def __init__(self, references: Sequence[str], setting: str) -> None:
        self._functions = {reference: load_function(reference, setting) for reference in references}

    def __call__(self, reference: str, arguments: Mapping[str, Any]) -> tuple[bool, str]:
        """Whether the call succeeded, and the text of its result or of its error."""
        function = self._functions[reference]
        try:
            if bound := sorted(_bound(function) & set(arguments)):
                raise TypeError(f"got an unexpected keyword argument {bound[0]!r}")
            positional, named = _assign_arguments(function, arguments)
            inspect.signature(function).bind(*positional, **named)
            result = function(*positional, **named)
            if inspect.isawaitable(result):
                result = asyncio.run(_await(result))
            return True, format_result(result)
        except (Exception, SystemExit) as error:
            return False, format_error(error)


def find_adapted_argument(function: Function) -> str:
    """Why a call is not just `function(**arguments)`; empty if it is."""
    if any(part.kind is part.POSITIONAL_ONLY for part in inspect.signature(function).parameters.values()):
        return "has a positional-only argument"
    if _is_dispatched(function):
        return "is a singledispatch function"
    return "has an Enum as an argument" if any(map(_has_enum, _read_hints(function).values())) else ""


def _assign_arguments(function: Function, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The positional and the named arguments of a call; members of an Enum in the place of their values."""
    hints = _read_hints(function)
    named = {name: _convert_enum(value, hints.get(name)) for name, value in arguments.items()}
    positional: list[Any] = []
    is_dispatched = _is_dispatched(function)
    for name, part in inspect.signature(function).parameters.items():
        is_positional = part.kind is part.POSITIONAL_ONLY or (is_dispatched and not positional)
        if not is_positional or (name not in named and part.default is part.empty):
            break
        positional.append(named.pop(name, part.default))
    return positional, named


def _is_dispatched(function: Function) -> bool:
    """Whether the type of the first positional argument selects the function."""
    return any(hasattr(layer, "dispatch") and hasattr(layer, "registry") for layer in _layers(function))


def _read_hints(function: Function) -> dict[str, Any]:
    """The types of arguments by name; empty if the function declares a schema."""
    if hasattr(function, "schema"):
        return {}
    inner = _inner_function(function)
    try:
        return get_type_hints(inner if inspect.isroutine(inner) else type(inner).__call__)
    except Exception:  # hints of the user that were not needed for a schema
        return {}


def _has_enum(hint: Any) -> bool:
    return isinstance(hint, EnumType) or any(map(_has_enum, get_args(hint)))


def _convert_enum(value: Any, hint: Any) -> Any:
    """The member of an Enum that has a JSON value, also in lists and objects. Raises `ValueError` if there is none."""
    if not _has_enum(hint):
        return value
    if isinstance(hint, EnumType):
        return hint(value)
    parts = get_args(hint)
    if isinstance(value, list):
        holders = [part for part in (hint, *parts) if get_origin(part) in (list, Sequence)]
        return [_convert_enum(item, get_args(holders[0])[0]) for item in value] if holders else value
    if isinstance(value, dict):
        holders = [part for part in (hint, *parts) if get_origin(part) in (dict, Mapping)]
        return {key: _convert_enum(item, get_args(holders[0])[-1]) for key, item in value.items()} if holders else value
    choices = [part for part in parts if isinstance(part, EnumType)]
    members = [member for choice in choices for member in choice if getattr(member, "value", None) == value]
    if members:
        return members[0]
    is_plain = value is None or any(isinstance(value, part) for part in parts if part in (str, int, float, bool))
    return value if is_plain or not choices else choices[0](value)


async def _await(result: Any) -> Any:
    return await result


def format_result(result: Any) -> str:
    """The text of a result: strings as they are, other values as JSON.

    Raises `TypeError` for a value without a text of its own, such as a generator: its address would differ when an
    iteration is repeated.
    """
    text = result if isinstance(result, str) else json.dumps(_plain_keys(result), ensure_ascii=False, default=_to_json)
    text = text.encode("utf-8", "replace").decode()  # half of a surrogate pair cannot be tokenized
    if len(text) > MAX_RESULT_CHARACTERS:
        text = f"{text[:MAX_RESULT_CHARACTERS]}... ({len(text)} characters)"
    return text


def _plain_keys(value: Any) -> Any:
    """A value with keys of dicts that JSON has: numbers of numpy as numbers, values of Enums, dates as text."""
    if isinstance(value, dict):
        return {_plain_key(key): _plain_keys(part) for key, part in value.items()}
    return [_plain_keys(part) for part in value] if isinstance(value, list | tuple) else value


def _plain_key(key: Any) -> Any:
    if isinstance(key, Enum):
        return key.value
    if isinstance(key, date):
        return str(key)
    return key.item() if hasattr(key, "item") else key


def _to_json(value: Any) -> Any:
    """A value of another type as JSON data: arrays as lists, sets in order, dates and the like as text.

    Raises `TypeError` for a value that is no data, such as bytes, a function or a class.
    """
    if hasattr(value, "tolist"):  # of numpy or torch
        return value.tolist()
    if isinstance(value, set | frozenset):
        return sorted(value, key=lambda part: (type(part).__name__, str(part)))
    if is_dataclass(value) and not isinstance(value, type):
        return {part.name: getattr(value, part.name) for part in fields(value)}
    if callable(dump := getattr(value, "model_dump", None)):  # of pydantic
        return dump()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Enum):
        return value.value
    is_data = not isinstance(value, bytes | bytearray | memoryview | type | Iterator)
    if is_data and isinstance(value, Sequence | MappingView):
        items: Any = value
        return list(islice(items, MAX_RESULT_CHARACTERS))  # more items would be cut
    text = str(value)
    if not is_data or _ADDRESS.search(text) or _REPRESENTATION.fullmatch(text):
        raise TypeError(
            f"the tool returned a value of type {type(value).__name__}; return text, a number, a list or a dict"
        )
    return text


def format_error(error: BaseException) -> str:
    """The class and message of an error, without file and line: the model does not see the code."""
    return format_result(f"{type(error).__name__}: {error}".removesuffix(": "))
