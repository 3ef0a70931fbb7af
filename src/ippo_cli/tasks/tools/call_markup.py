"""Read calls that are no JSON objects: the markup of Qwen3-Coder, GLM, GPT-OSS and LFM2.

Each reader takes a text and returns its calls in order. Values in markup are texts; `convert_value` gives them the type
that the tool's schema names, as the parsers of vLLM do.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CALL_START, CALL_END = "<tool_call>", "</tool_call>"
FUNCTION_START, FUNCTION_END = "<function=", "</function>"
PARAMETER_START, PARAMETER_END = "<parameter=", "</parameter>"
ARG_KEY_START, ARG_KEY_END = "<arg_key>", "</arg_key>"
ARG_VALUE_START, ARG_VALUE_END = "<arg_value>", "</arg_value>"
PYTHON_START, PYTHON_END = "<|tool_call_start|>", "<|tool_call_end|>"
HARMONY_MESSAGE, HARMONY_ENDS = "<|message|>", ("<|call|>", "<|end|>", "<|return|>", "<|start|>")
HARMONY_RECIPIENT = " to=functions."

_HARMONY_HEADER = re.compile(r"to=functions\.([\w.-]+)")
_HARMONY_MARKUP = re.compile(r"(?:<\|(?:start|channel|constrain)\|>[^<]*)*<\|message\|>|<\|(?:end|call|return)\|>")
_PYTHON_CALLS = re.compile(r"\s*\[\s*[A-Za-z_][\w.]*\(.*\)\s*\]\s*", re.DOTALL)
_PYTHON_NAMES = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class MarkupCall:
    """A call, or what is wrong with it, and the part of the text that it takes."""

    start: int
    end: int
    name: str = ""
    arguments: Any = None
    error: str = ""


def property_types(schemas: Sequence[Mapping[str, Any]], tool: str) -> dict[str, Any]:
    """The JSON types of a tool's arguments by name; empty for an unknown tool."""
    for schema in schemas:
        function = schema.get("function", schema)
        if function.get("name") == tool:
            properties = (function.get("parameters") or {}).get("properties") or {}
            return {name: part.get("type", "any") for name, part in properties.items() if isinstance(part, Mapping)}
    return {}


def convert_value(text: str, kind: Any) -> Any:
    """A value with the type of the schema; text that is no JSON, and values of strings, stay text."""
    kinds = kind if isinstance(kind, list) else [kind]
    if kinds == ["string"]:
        return text
    if "boolean" in kinds and text.strip() in ("True", "False"):
        return text.strip() == "True"
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if "string" in kinds and not isinstance(value, dict | list | None) else value


def read_function_markup(text: str, schemas: Sequence[Mapping[str, Any]]) -> Iterator[MarkupCall]:
    """Read `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`, repeated."""
    start = text.find(FUNCTION_START)
    while start >= 0:
        name, place = _read_until(text, start + len(FUNCTION_START), ">")
        types, arguments = property_types(schemas, name.strip()), {}
        while (following := _skip_space(text, place)) >= 0 and text.startswith(PARAMETER_START, following):
            key, place = _read_until(text, following + len(PARAMETER_START), ">")
            value, place = _read_until(text, place, PARAMETER_END)
            value = value.removeprefix("\n").removesuffix("\n")
            arguments[key.strip()] = convert_value(value, types.get(key.strip(), "any"))
        is_closed = text.startswith(FUNCTION_END, following)
        end = following + len(FUNCTION_END) if is_closed else place
        begin, end = _include_wrapper(text, start, end)
        # Without its end the call was cut, or the text after the last argument is none of it.
        error = "" if is_closed or not text[end:].strip() else f"no {FUNCTION_END}"
        yield MarkupCall(begin, end, name.strip(), arguments, error)
        start = text.find(FUNCTION_START, max(end, start + 1))


def read_key_markup(text: str, schemas: Sequence[Mapping[str, Any]]) -> Iterator[MarkupCall]:
    """Read `<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`, repeated."""
    start = text.find(CALL_START)
    while start >= 0:
        place = start + len(CALL_START)
        ends = [found for mark in (ARG_KEY_START, CALL_END) if (found := text.find(mark, place)) >= 0]
        name, place = text[place : min(ends, default=len(text))], min(ends, default=len(text))
        if name.lstrip().startswith("{"):  # JSON, as Hermes writes it
            return
        types, arguments = property_types(schemas, name.strip()), {}
        while text.startswith(ARG_KEY_START, place):
            key, place = _read_until(text, place + len(ARG_KEY_START), ARG_KEY_END)
            place = _skip_space(text, place)
            if not text.startswith(ARG_VALUE_START, place):
                break
            value, place = _read_until(text, place + len(ARG_VALUE_START), ARG_VALUE_END)
            arguments[key.strip()] = convert_value(value, types.get(key.strip(), "any"))
            place = _skip_space(text, place)
        is_closed = text.startswith(CALL_END, place)
        end = place + len(CALL_END) if is_closed else place
        yield MarkupCall(start, end, name.strip(), arguments, "" if is_closed or end == len(text) else f"no {CALL_END}")
        start = text.find(CALL_START, max(end, start + 1))


def read_harmony(text: str, schemas: Sequence[Mapping[str, Any]]) -> Iterator[MarkupCall]:
    """Read messages of GPT-OSS to `functions.NAME`; their text is a JSON object."""
    start, end = text.find(HARMONY_MESSAGE), 0
    while start >= 0:
        message = start + len(HARMONY_MESSAGE)
        ends = [found for mark in HARMONY_ENDS if (found := text.find(mark, message)) >= 0]
        stop = min(ends, default=len(text))
        header = _HARMONY_HEADER.search(text, end, start)
        if header is not None:
            close = len("<|call|>") if text.startswith("<|call|>", stop) else 0
            try:
                yield MarkupCall(end, stop + close, header[1], json.loads(text[message:stop] or "{}"))
            except (ValueError, RecursionError):
                yield MarkupCall(end, stop + close, header[1], error="invalid JSON")
            stop += close
        end, start = stop, text.find(HARMONY_MESSAGE, stop)


def strip_harmony(text: str) -> str:
    """The texts of GPT-OSS's messages without headers."""
    return _HARMONY_MARKUP.sub("\n", text).strip()


def read_python_calls(text: str, schemas: Sequence[Mapping[str, Any]]) -> Iterator[MarkupCall]:
    """Read `<|tool_call_start|>[NAME(KEY=VALUE, ...), ...]<|tool_call_end|>`, repeated; LFM2 writes Python literals."""
    start = text.find(PYTHON_START)
    if start < 0 and _PYTHON_CALLS.fullmatch(text):  # decoded without special tokens
        yield from _parse_python_calls(text.strip(), 0, len(text))
    while start >= 0:
        body, end = _read_until(text, start + len(PYTHON_START), PYTHON_END)
        yield from _parse_python_calls(body.strip(), start, end)
        start = text.find(PYTHON_START, end)


def write_python_call(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as LFM2 writes it."""
    return f"{PYTHON_START}[{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})]{PYTHON_END}"


def _parse_python_calls(body: str, start: int, end: int) -> Iterator[MarkupCall]:
    try:
        tree = ast.parse(body, mode="eval").body
        parts = tree.elts if isinstance(tree, ast.List | ast.Tuple) else [tree]
        calls = [_read_python_call(part) for part in parts]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        yield MarkupCall(start, end, error=f"invalid Python ({type(error).__name__})")
        return
    for name, arguments in calls:
        yield MarkupCall(start, end, name, arguments)


def _read_python_call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    return ast.unparse(node.func), {
        str(part.arg): ast.literal_eval(_JsonNames().visit(part.value)) for part in node.keywords
    }


class _JsonNames(ast.NodeTransformer):
    """Names of JSON constants, as some models write them in Python calls."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_PYTHON_NAMES[node.id]) if node.id in _PYTHON_NAMES else node


def _read_until(text: str, start: int, mark: str) -> tuple[str, int]:
    """The text before a mark, or all of it without the mark, and the place after the mark."""
    end = text.find(mark, start)
    return (text[start:], len(text)) if end < 0 else (text[start:end], end + len(mark))


def _skip_space(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start


def _include_wrapper(text: str, start: int, end: int) -> tuple[int, int]:
    """The part of a call with the `<tool_call>` around it."""
    before = len(text[:start].rstrip())
    begin = before - len(CALL_START) if text[:before].endswith(CALL_START) else start
    after = _skip_space(text, end)
    return begin, after + len(CALL_END) if text.startswith(CALL_END, after) else end
