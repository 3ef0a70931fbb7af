"""Tools that are Python functions: their schemas from type hints and docstrings, and their calls in child processes.

A file offers the functions in its list `TOOLS`; without one, all public functions that it defines. The schema is that
of `get_json_schema` of transformers, or the function's attribute `schema`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.tasks.tools.tool import Tool
from ippo_cli.user_code.load import load_function, load_module

MAX_RESULT_CHARACTERS = 8192  # longer results are cut: they would fill the context of most models
CALLER = f"{__name__}:FunctionCaller"
Function = Callable[..., Any]


def load_python_tools(reference: str, setting: str) -> list[Tool]:
    """Load the tools of `file.py`, `file.py:name` or `module:name`. Raises `ConfigError`."""
    if not reference.endswith(".py"):
        function = load_function(reference, setting)
        return [_make_tool(function, reference, setting)]
    module = load_module(reference, f"{setting}={reference}")
    functions = _offered_functions(module, f"{setting}={reference}")
    return [_make_tool(function, f"{reference}:{function.__name__}", setting) for function in functions]


def _offered_functions(module: ModuleType, setting: str) -> list[Function]:
    offered = getattr(module, "TOOLS", None)
    if offered is None:
        offered = [
            value
            for name, value in vars(module).items()
            if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
        ]
        if not offered:
            raise ConfigError(setting, "defines no public function", "define functions with type hints and docstrings")
    if not isinstance(offered, list) or not offered:
        raise ConfigError(setting, f"has TOOLS={offered!r:.60}", "TOOLS must be a list of functions of that file")
    for function in offered:
        name = getattr(function, "__name__", None)
        if name is None or getattr(module, name, None) is not function:
            raise ConfigError(
                setting,
                f"lists {function!r:.60} in TOOLS, which is not a function with a name in that file",
                "define it there with def",
            )
    return offered


def _make_tool(function: Function, reference: str, setting: str) -> Tool:
    name = reference.rpartition(":")[2]
    return Tool(name=name, schema=_read_schema(function, name, reference, setting), source=reference)


def _read_schema(function: Function, name: str, reference: str, setting: str) -> dict[str, Any]:
    """The JSON schema of a function in the form of chat templates. Raises `ConfigError`."""
    own: Any = getattr(function, "schema", None)
    try:
        if own is None:
            from transformers.utils.chat_template_utils import get_json_schema

            schema = get_json_schema(function)
        else:
            schema = own if own.get("type") == "function" else {"type": "function", "function": own}
            _check_schema(schema["function"], name)
        return json.loads(json.dumps(schema))
    except Exception as error:  # of transformers, with its own classes; or of a schema that is none
        code = getattr(function, "__code__", None)
        place = "" if code is None else f", line {code.co_firstlineno}"
        raise ConfigError(
            f"{setting}={reference}",
            f"has no usable JSON schema{place} ({' '.join(str(error).split())})",
            "give every argument a type hint and a description under `Args:` in the docstring, or set the function's "
            "attribute `schema`",
        ) from error


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
            inspect.signature(function).bind(**arguments)
            result = function(**arguments)
            if inspect.isawaitable(result):
                result = asyncio.run(_await(result))
            return True, format_result(result)
        except (Exception, SystemExit) as error:
            return False, format_error(error)


async def _await(result: Any) -> Any:
    return await result


def format_result(result: Any) -> str:
    """The text of a result: strings as they are, other values as JSON."""
    text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
    text = text.encode("utf-8", "replace").decode()  # half of a surrogate pair cannot be tokenized
    if len(text) > MAX_RESULT_CHARACTERS:
        text = f"{text[:MAX_RESULT_CHARACTERS]}... ({len(text)} characters)"
    return text


def format_error(error: BaseException) -> str:
    """The class and message of an error, without file and line: the model does not see the code."""
    return format_result(f"{type(error).__name__}: {error}".removesuffix(": "))
