"""Parse the tool calls that a model writes, in the formats of several model families.

A marker such as `<tool_call>` or `[TOOL_CALLS]` is a special token of some tokenizers, so a text that is decoded
without special tokens lacks it. `decode_with_markers` keeps markers; `parse_tool_calls` reads texts with and without
them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

from ippo_cli.config.schema.tools import ToolFormat
from ippo_cli.tasks.tools import call_markup

MAX_NESTING = 64  # levels of a call's arguments
MAX_ATTEMPTS = 256  # JSON values that are decoded per response: bounds the time for texts of braces
MAX_THOUGHTS = 16  # per response; text after them is not read for calls
MAX_SHOWN = 60  # characters of a call in an error
THINK_START, THINK_END = "<think>", "</think>"  # calls between them are thoughts
HERMES_START, HERMES_END = call_markup.CALL_START, call_markup.CALL_END
LLAMA_MARKER = "<|python_tag|>"
MISTRAL_MARKER = "[TOOL_CALLS]"
ARGUMENT_KEYS = ("arguments", "parameters")
MARKUP_READERS = {  # the marker of each format, and its reader
    ToolFormat.qwen3_coder: (call_markup.FUNCTION_START, call_markup.read_function_markup),
    ToolFormat.glm: (call_markup.ARG_KEY_START, call_markup.read_key_markup),
    ToolFormat.gpt_oss: (call_markup.HARMONY_RECIPIENT, call_markup.read_harmony),
    ToolFormat.lfm2: (call_markup.PYTHON_START, call_markup.read_python_calls),
}

MARKERS = (HERMES_START, LLAMA_MARKER, MISTRAL_MARKER, *(marker for marker, _ in MARKUP_READERS.values()))

TEMPLATE_MARKERS = {  # texts of chat templates that tell these formats apart; Qwen3-Coder and GLM use Hermes's markers
    ToolFormat.qwen3_coder: (call_markup.FUNCTION_START,),
    ToolFormat.glm: (call_markup.ARG_KEY_START,),
    ToolFormat.gpt_oss: ("to=functions", "to=assistant<|channel|>commentary"),
    ToolFormat.lfm2: (call_markup.PYTHON_START, "<|tool_list_start|>"),
}

_VALUE_START = re.compile(r'\{\s*"|\[\s*\{')
_NAME_KEY = re.compile(r'\{\s*"name"\s*:')  # an object that begins like this is meant as a call
_SEPARATORS = re.compile(r"[\s,;]*")
_MISTRAL_NAME = re.compile(r"\s*([\w.-]+)\s*(?:\[CALL_ID\]\s*\w+\s*)?(?:\[ARGS\])?\s*")
_EMPTY_FENCE = re.compile(r"```(?:json|tool_call|tool_code)?[\s;,]*```")
_THINK_MARK = re.compile(f"{THINK_START}|{THINK_END}")
_THINK_START = re.compile(THINK_START)
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class ToolCall:
    """A call as the model wrote it: the tool may not exist, and the arguments may not fit it."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class ParsedResponse:
    """A response, separated into its text and its tool calls."""

    content: str  # the text outside of calls; the unchanged response if it has no calls
    calls: tuple[ToolCall, ...] = ()
    errors: tuple[str, ...] = ()  # one message for each call that could not be parsed; its text remains in `content`


class SupportsDecode(Protocol):
    """The part of a tokenizer that decodes responses."""

    all_special_ids: Any

    def decode(self, token_ids: Any, **options: Any) -> Any: ...


def decode_with_markers(ids: Sequence[int], tokenizer: SupportsDecode) -> str:
    """Decode a response for `parse_tool_calls`: with special tokens, but without the stop token at its end."""
    text_ids = list(ids)
    if text_ids and text_ids[-1] in tokenizer.all_special_ids:
        text_ids.pop()
    return str(
        tokenizer.decode(
            text_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False, spaces_between_special_tokens=False
        )
    )


def detect_tool_format(chat_template: str | None) -> ToolFormat:
    """Return the format that a chat template asks the model to write; `json` if it names no known format."""
    template = chat_template or ""
    if MISTRAL_MARKER in template:
        return ToolFormat.mistral
    for format, markers in TEMPLATE_MARKERS.items():
        if any(marker in template for marker in markers):
            return format
    if HERMES_START in template:
        return ToolFormat.hermes
    if LLAMA_MARKER in template or ("ipython" in template and '"parameters"' in template):
        return ToolFormat.llama3
    return ToolFormat.json


def chat_template_text(tokenizer: Any) -> str:
    """The chat template that is used with tools: some tokenizers have several, by name."""
    template: Any = getattr(tokenizer, "chat_template", None)
    if isinstance(template, Mapping):
        template = template.get("tool_use", template.get("default"))
    return str(template)


def parse_tool_calls(
    text: str, format: ToolFormat, schemas: Sequence[Mapping[str, Any]] = (), *, starts_in_thought: bool = False
) -> ParsedResponse:
    """Separate a response into text and tool calls. Does not raise; the time is bounded by a multiple of the length.

    `auto` recognizes the format by its markers. Without markers, JSON objects with a name and arguments are calls in
    every format. Calls in a thought, also in one that does not end, are text. `starts_in_thought`: the prompt ends with
    `<think>`; otherwise text before a first `</think>` is a thought as well, unless a call spells it. `schemas` of the
    tools give arguments their types in formats that write all values as text.
    """
    calls, errors = [], []
    content, end = [], 0
    for start, stop in _find_thoughts(text, format, schemas, starts_in_thought=starts_in_thought):
        reader = _read_calls(text[end:start], format, schemas)
        calls += reader.calls
        errors += reader.errors
        content += [reader.content(), text[start:stop]]
        end = stop
    if not calls:
        return ParsedResponse(text, errors=tuple(errors))
    outside = "".join(content).strip()
    return ParsedResponse(
        call_markup.strip_harmony(outside) if format is ToolFormat.gpt_oss else outside, tuple(calls), tuple(errors)
    )


def _read_calls(answer: str, format: ToolFormat, schemas: Sequence[Mapping[str, Any]]) -> _Reader:
    reader = _Reader(answer)
    if _spells_first_marker(answer):
        reader.read_objects()
        return reader
    markup = next(
        (
            read
            for kind, (marker, read) in MARKUP_READERS.items()
            if format is kind or (format is ToolFormat.auto and marker in answer)
        ),
        None,
    )
    if markup is not None and reader.read_markup(markup(answer, schemas)):
        return reader
    if (
        format in (ToolFormat.hermes, ToolFormat.qwen3_coder, ToolFormat.glm, ToolFormat.auto)
        and HERMES_START in answer
    ):
        reader.read_hermes()
    elif format in (ToolFormat.llama3, ToolFormat.auto) and LLAMA_MARKER in answer:
        reader.read_llama()
    elif format in (ToolFormat.mistral, ToolFormat.auto) and MISTRAL_MARKER in answer:
        reader.read_mistral()
    elif not (format in (ToolFormat.mistral, ToolFormat.glm) and reader.read_named()):
        reader.read_objects()
    return reader


def _spells_first_marker(answer: str) -> bool:
    """Whether the first marker of calls is a part of a JSON call without markers, such as an argument of it."""
    places = [place for marker in MARKERS if (place := answer.find(marker)) >= 0]
    if not places or "{" not in answer[: min(places)]:
        return False
    reader = _Reader(answer)
    reader.read_objects()
    return any(start < min(places) < stop for start, stop in reader.spans)


def _find_thoughts(
    text: str, format: ToolFormat, schemas: Sequence[Mapping[str, Any]], *, starts_in_thought: bool
) -> Iterator[tuple[int, int]]:
    """The parts of a text that are thoughts, in order, and an empty part at its end; markers in calls are text."""
    answer = 0  # where the text after the last thought begins
    thought = 0 if starts_in_thought or text.lstrip().startswith(THINK_START) else None
    for _ in range(MAX_THOUGHTS):
        if thought is not None:
            end = text.find(THINK_END, thought)
            answer = len(text) if end < 0 else end + len(THINK_END)
            yield thought, answer
        mark = _find_outside_calls(text, answer, format, schemas)
        if mark is None:
            break
        thought = mark.start() if mark[0] == THINK_START else 0
    else:
        yield answer, len(text)
    yield len(text), len(text)


def _find_outside_calls(
    text: str, answer: int, format: ToolFormat, schemas: Sequence[Mapping[str, Any]]
) -> re.Match[str] | None:
    """The first mark of a thought after `answer` that no call spells; an end counts only before any thought."""
    mark_pattern = _THINK_MARK if answer == 0 else _THINK_START
    mark, spans = mark_pattern.search(text, answer), None
    while mark is not None and any(sign in text[answer : mark.start()] for sign in "{<["):  # a call may have begun
        if spans is None:
            spans = _read_calls(text[answer:], format, schemas).spans
        place = mark.start() - answer
        inside = next((stop for start, stop in spans if start <= place < stop), None)
        if inside is None:
            break
        mark = mark_pattern.search(text, answer + inside)
    return mark


class _NotDecoded(Exception):
    """No JSON value begins at this position; `end` is where decoding stopped, or None if nothing after it is read."""

    def __init__(self, reason: str, end: int | None = None) -> None:
        super().__init__(reason)
        self.end = end


class _Reader:
    """Reads one response; `spans` are the parts of the text that are calls, in order."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.calls: list[ToolCall] = []
        self.errors: list[str] = []
        self.spans: list[tuple[int, int]] = []
        self._attempts = 0

    def content(self) -> str:
        """The text without its calls, and without code fences and brackets that contained only calls."""
        end, parts = 0, []
        for start, stop in self.spans:
            parts.append(self.text[end:start])
            end = stop
        content = _EMPTY_FENCE.sub("", "".join([*parts, self.text[end:]]))
        return "" if not content.strip(" \t\n[],;") else content

    def read_markup(self, found: Iterator[call_markup.MarkupCall]) -> bool:
        """Add calls that are written in markup; whether there were any, also malformed ones."""
        has_calls = False
        for call in islice(found, MAX_ATTEMPTS):
            has_calls, num_calls = True, len(self.calls)
            if call.error:
                self.errors.append(f"{call.error} in {self._quote(call.start)}")
            else:
                self._add_call({"name": call.name, "arguments": call.arguments}, call.start)
            if len(self.calls) > num_calls and (call.start, call.end) not in self.spans[-1:]:
                self.spans.append((call.start, call.end))
        return has_calls

    def read_hermes(self) -> None:
        """Read `<tool_call>{...}</tool_call>`, repeated; the last end marker may be missing."""
        start = self.text.find(HERMES_START)
        while start >= 0 and self._attempts < MAX_ATTEMPTS:
            is_read, end = self._read_values(start + len(HERMES_START))
            close = self.text.find(HERMES_END, end)
            following = self.text.find(HERMES_START, end)
            if close >= 0 and (following < 0 or close < following):
                end = close + len(HERMES_END)
            if is_read:
                self.spans.append((start, end))
            start = following

    def read_llama(self) -> None:
        """Read `<|python_tag|>{...}; {...}`."""
        start = self.text.find(LLAMA_MARKER)
        is_read, end = self._read_values(start + len(LLAMA_MARKER))
        if is_read:
            self.spans.append((start, end))

    def read_mistral(self) -> None:
        """Read `[TOOL_CALLS][{...}, {...}]`, or the newer `[TOOL_CALLS]name[ARGS]{...}`, repeated."""
        start = self.text.find(MISTRAL_MARKER)
        while start >= 0 and self._attempts < MAX_ATTEMPTS:
            after = start + len(MISTRAL_MARKER)
            is_read, end = self._read_named_values(after) or self._read_values(after)
            if is_read:
                self.spans.append((start, end))
            start = self.text.find(MISTRAL_MARKER, end)

    def read_named(self) -> bool:
        """Read a whole text `name[ARGS]{...}` or `name{...}`; whether it has this form."""
        found = self._read_named_values(0)
        if found is None or not found[0] or self.text[found[1] :].strip():
            self.calls.clear()
            self.errors.clear()
            return False
        self.spans.append((0, found[1]))
        return True

    def read_objects(self) -> None:
        """Read JSON objects with a name and arguments, also in lists and code fences; other objects are text."""
        end = 0
        while (found := _VALUE_START.search(self.text, end)) and self._attempts < MAX_ATTEMPTS:
            start = found.start()
            is_meant = _NAME_KEY.match(self.text, start) is not None
            try:
                value, end = self._decode(start)
            except _NotDecoded as failure:
                if is_meant:
                    self.errors.append(f"{failure} in {self._quote(start)}")
                if failure.end is None:
                    return
                # A list may hold calls before its error; an object is skipped to its error.
                end = start + 1 if self.text[start] == "[" else max(failure.end, start + 1)
                continue
            parts = value if isinstance(value, list) else [value]
            if all(_is_call(part) for part in parts):
                num_calls = len(self.calls)
                for part in parts:
                    self._add_call(part, start)
                if len(self.calls) > num_calls:
                    self.spans.append((start, end))
            elif is_meant and isinstance(value, dict) and "name" in value and len(value) == 1:
                self.errors.append(f"no arguments in {self._quote(start)}")

    def _read_values(self, start: int) -> tuple[bool, int]:
        """Read consecutive JSON values as calls; whether there were calls, and the position after the last value."""
        num_calls, end = len(self.calls), start
        while self._attempts < MAX_ATTEMPTS:
            separator = _SEPARATORS.match(self.text, end)
            begin = end if separator is None else separator.end()
            if end > start and not self.text.startswith(("{", "["), begin):
                break  # text after the calls
            try:
                value, end = self._decode(begin)
            except _NotDecoded as failure:
                self.errors.append(f"{failure} in {self._quote(begin)}")
                break
            for part in value if isinstance(value, list) else [value]:
                self._add_call(part, begin)
        return len(self.calls) > num_calls, end

    def _read_named_values(self, start: int) -> tuple[bool, int] | None:
        """Read `name[ARGS]{...}`; None if the text has no name there."""
        name = _MISTRAL_NAME.match(self.text, start)
        if name is None:
            return None
        try:
            arguments, end = self._decode(name.end())
        except _NotDecoded as failure:
            self.errors.append(f"{failure} in {self._quote(start)}")
            return False, name.end()
        num_calls = len(self.calls)
        self._add_call({"name": name[1], "arguments": arguments}, start)
        return len(self.calls) > num_calls, end

    def _decode(self, start: int) -> tuple[Any, int]:
        """Decode the JSON value at a position; returns it and the position after it."""
        self._attempts += 1
        try:
            return _DECODER.raw_decode(self.text, start)
        except json.JSONDecodeError as error:
            raise _NotDecoded(f"invalid JSON ({error.msg})", error.pos) from None
        except (ValueError, RecursionError):  # a number of thousands of digits, or nesting of thousands of levels
            raise _NotDecoded("the JSON value is too large") from None

    def _add_call(self, value: Any, start: int) -> None:
        """Add a decoded call, or an error if it is none."""
        if isinstance(value, dict) and isinstance(value.get("function"), dict):  # the shape of OpenAI's interface
            value = value["function"]
        if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"].strip():
            self.errors.append(f"no tool name in {self._quote(start)}")
            return
        arguments: Any = next((value[key] for key in ARGUMENT_KEYS if key in value), None)
        if isinstance(arguments, str):  # some models write the arguments as JSON text
            try:
                arguments = json.loads(arguments)
            except (ValueError, RecursionError):
                self.errors.append(f"the arguments are not JSON in {self._quote(start)}")
                return
        arguments = {} if arguments is None else arguments
        if not isinstance(arguments, dict):
            self.errors.append(f"the arguments are not a JSON object in {self._quote(start)}")
        elif _is_nested_deeper(arguments, MAX_NESTING):
            self.errors.append(f"the arguments have more than {MAX_NESTING} levels in {self._quote(start)}")
        elif not _is_valid_json({"name": value["name"], "arguments": arguments}):
            self.errors.append(f"a number or a character that JSON does not have in {self._quote(start)}")
        else:
            self.calls.append(ToolCall(value["name"].strip(), arguments))

    def _quote(self, start: int) -> str:
        text = self.text[start : start + MAX_SHOWN + 1].strip()
        return repr(text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "...")


def _is_call(value: Any) -> bool:
    """Whether a JSON value has the shape of a call, so that no marker is needed to recognize it."""
    if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
        value = value["function"]
    return isinstance(value, Mapping) and "name" in value and any(key in value for key in ARGUMENT_KEYS)


def _is_nested_deeper(value: Any, limit: int) -> bool:
    """Whether a JSON value has more than `limit` levels; does not recurse."""
    level = [value]
    for _ in range(limit):
        level = [part for held in level for part in _children(held)]
        if not level:
            return False
    return True


def _children(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _is_valid_json(value: Any) -> bool:
    """Whether a decoded value can be encoded: Python reads NaN, and escapes that spell half of a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except ValueError:
        return False
    return True
