"""Tool calls in responses: formats of model families, calls that cannot be parsed, and adversarial texts."""

from __future__ import annotations

import json
import random
import time

import pytest
from chats import CHATML, Family, tokenizer_of

from ippo_cli.config.schema import ToolFormat
from ippo_cli.tasks.tools.formats import (
    MARKERS,
    ParsedResponse,
    ToolCall,
    decode_with_markers,
    detect_tool_format,
    parse_tool_calls,
)
from ippo_cli.tasks.tools.prompts import format_call

ADD = ToolCall("add", {"a": 1, "b": [2, {"c": "x}"}]})
NOW = ToolCall("now", {})
CALL = json.dumps({"name": "add", "arguments": ADD.arguments})
LLAMA_CALL = json.dumps({"name": "add", "parameters": ADD.arguments})
FORMATS = [member for member in ToolFormat if member is not ToolFormat.auto]


@pytest.mark.parametrize(
    ("format", "text", "content", "calls"),
    [
        ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", [ADD]),
        ("hermes", f"Let me add.\n<tool_call>{CALL}</tool_call>", "Let me add.", [ADD]),
        (
            "hermes",
            f'<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{{"name": "now"}}\n</tool_call>',
            "",
            [ADD, NOW],
        ),
        ("hermes", f"<tool_call>\n{CALL}\n{CALL}\n</tool_call>", "", [ADD, ADD]),
        ("hermes", f"<tool_call>\n{CALL}", "", [ADD]),  # the end marker was the stop string
        ("hermes", f"\n{CALL}\n", "", [ADD]),  # decoded without special tokens
        ("hermes", f"<think>\n<tool_call>{CALL}</tool_call>?\n</think>\nNo.", None, []),
        ("hermes", f"<think>I add.</think>\n<tool_call>{CALL}</tool_call>", "<think>I add.</think>", [ADD]),
        (
            "hermes",
            '<tool_call>{"name": "echo", "arguments": {"x": "</tool_call>"}}</tool_call>!',
            "!",
            [ToolCall("echo", {"x": "</tool_call>"})],
        ),
        ("llama3", LLAMA_CALL, "", [ADD]),
        ("llama3", f"<|python_tag|>{LLAMA_CALL}; {LLAMA_CALL}", "", [ADD, ADD]),
        ("llama3", f"{LLAMA_CALL};{LLAMA_CALL}", "", [ADD, ADD]),
        ("llama3", f"I add.<|python_tag|>{LLAMA_CALL}", "I add.", [ADD]),
        ("llama3", f'{{"type": "function", {LLAMA_CALL[1:]}', "", [ADD]),
        ("mistral", f"[TOOL_CALLS][{CALL}, {CALL}]", "", [ADD, ADD]),
        ("mistral", f"[TOOL_CALLS] [{CALL}]", "", [ADD]),
        ("mistral", f"[{CALL}]", "", [ADD]),
        (
            "mistral",
            f"Yes.[TOOL_CALLS]add[ARGS]{json.dumps(ADD.arguments)}[TOOL_CALLS]now[ARGS]{{}}",
            "Yes.",
            [ADD, NOW],
        ),
        ("mistral", f"[TOOL_CALLS]add[CALL_ID]a1B2[ARGS]{json.dumps(ADD.arguments)}", "", [ADD]),
        ("mistral", f"add{json.dumps(ADD.arguments)}", "", [ADD]),
        ("json", CALL, "", [ADD]),
        ("json", f"```json\n{CALL}\n```", "", [ADD]),
        ("json", f"First:\n```json\n[{CALL}, {CALL}]\n```\nThen more.", "First:\n\nThen more.", [ADD, ADD]),
        ("json", f"I call {CALL} now", "I call  now", [ADD]),
        ("json", '{"name": "now", "arguments": "{}"}', "", [NOW]),
        ("json", json.dumps({"type": "function", "function": json.loads(CALL)}), "", [ADD]),
        ("json", f"the set {{x}} and [1], then {CALL}", "the set {x} and [1], then", [ADD]),
        ("json", '{"answer": 7, "unit": {"name": "m"}}', None, []),
        ("json", "42", None, []),
        ("auto", f"<tool_call>{CALL}</tool_call>", "", [ADD]),
        ("auto", f"[TOOL_CALLS][{CALL}]", "", [ADD]),
        ("auto", f"<|python_tag|>{LLAMA_CALL}", "", [ADD]),
        ("auto", CALL, "", [ADD]),
    ],
)
def test_calls_are_separated_from_the_text(format: str, text: str, content: str | None, calls: list[ToolCall]) -> None:
    parsed = parse_tool_calls(text, ToolFormat(format))
    assert parsed == ParsedResponse(text if content is None else content, tuple(calls))


@pytest.mark.parametrize("format", ToolFormat)
def test_a_response_without_calls_is_unchanged(format: ToolFormat) -> None:
    text = ' The set {1, 2} has 2 elements: {"size": 2}.\n'
    assert parse_tool_calls(text, format) == ParsedResponse(text)


@pytest.mark.parametrize(
    ("format", "text", "error"),
    [
        ("hermes", '<tool_call>{"name": "add", }</tool_call>', "invalid JSON"),
        ("hermes", "<tool_call>add(1)</tool_call>", "invalid JSON"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "no tool name"),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>', "no tool name"),
        ("hermes", '<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "not a JSON object"),
        ("hermes", '<tool_call>{"name": "add", "arguments": "{"}</tool_call>', "not JSON"),
        ("hermes", '<tool_call>"add"</tool_call>', "no tool name"),
        ("hermes", '<tool_call>{"name": "add", "arguments": {"a": "\\ud800"}}</tool_call>', "character that JSON"),
        ("json", '{"name": "add", "arguments": {"a": NaN}}', "number"),
        ("llama3", '<|python_tag|>search.call(query="x")', "invalid JSON"),
        ("mistral", "[TOOL_CALLS]add[ARGS]{", "invalid JSON"),
        ("mistral", "[TOOL_CALLS][1]", "no tool name"),
        ("json", '{"name": "add", "arguments": {"a": 1', "invalid JSON"),
        ("json", '{"name": "add"}', "no arguments"),
        ("json", '{"name": "add", "arguments": {"a": ' + "[" * 100 + "]" * 100 + "}}", "levels"),
    ],
)
def test_calls_that_cannot_be_parsed_are_errors(format: str, text: str, error: str) -> None:
    parsed = parse_tool_calls(text, ToolFormat(format))
    assert parsed.calls == ()
    assert parsed.content == text
    assert len(parsed.errors) == 1
    assert error in parsed.errors[0]


TYPED = {
    "name": "note",
    "parameters": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "count": {"type": "integer"},
            "flag": {"type": "boolean"},
            "parts": {"type": "array"},
            "either": {"type": ["string", "null"]},
        },
    },
}
NOTE = ToolCall("note", {"text": "7\n<b> </think>", "count": 3, "flag": True, "parts": [1, "x"], "either": None})


@pytest.mark.parametrize("format", ToolFormat)
def test_written_calls_are_read_with_the_types_of_the_schema(format: ToolFormat) -> None:
    written = format_call(NOTE, format)
    schemas = [{"type": "function", "function": TYPED}]
    for text in (written, f"Now.\n{written}", f"<think>\nI call {written}.\n</think>\n\n{written}"):
        parsed = parse_tool_calls(text, format, schemas)
        if "I call" not in text:
            assert (parsed.calls, parsed.errors) == ((NOTE,), ())
    for text in (f"<think>\nI call {format_call(NOW, format)}.", f"I call {format_call(NOW, format)}."):
        assert parse_tool_calls(text, format, schemas, starts_in_thought="<think>" not in text).calls == ()
    both = f"<think>I call {format_call(NOW, format)}</think>\n{written}"
    assert parse_tool_calls(both, format, schemas).calls == (NOTE,)
    assert parse_tool_calls(both[7:], format, schemas, starts_in_thought=True).calls == (NOTE,)


@pytest.mark.parametrize(
    ("format", "text", "content", "calls"),
    [
        (
            "qwen3_coder",
            "So.\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>\n"
            "<tool_call>\n<function=now>\n</function>\n</tool_call>",
            "So.",
            [ToolCall("add", {"a": 1}), NOW],
        ),
        (
            "qwen3_coder",
            "<function=add>\n<parameter=a>\ntwo\nlines\n</parameter>",
            "",
            [ToolCall("add", {"a": "two\nlines"})],
        ),
        ("qwen3_coder", f"<tool_call>{CALL}</tool_call>", "", [ADD]),
        (
            "glm",
            "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
            "",
            [ToolCall("add", {"a": 1})],
        ),
        ("glm", "<tool_call>now</tool_call>", "", [NOW]),
        ("glm", 'add\n{"a": 1}', "", [ToolCall("add", {"a": 1})]),
        (
            "gpt_oss",
            "<|channel|>analysis<|message|>I add.<|end|><|start|>assistant<|channel|>commentary to=functions.add "
            '<|constrain|>json<|message|>{"a": 1}<|call|>',
            "I add.",
            [ToolCall("add", {"a": 1})],
        ),
        ("gpt_oss", ' to=functions.add<|channel|>commentary json<|message|>{"a": 1}', "", [ToolCall("add", {"a": 1})]),
        ("gpt_oss", "<|channel|>final<|message|>It is 3 to=functions.now", None, []),
        (
            "lfm2",
            'Yes.<|tool_call_start|>[add(a=1, b="x"), now()]<|tool_call_end|>',
            "Yes.",
            [ToolCall("add", {"a": 1, "b": "x"}), NOW],
        ),
        ("lfm2", "[add(a=[1, -2.5], b=true, c=None)]", "", [ToolCall("add", {"a": [1, -2.5], "b": True, "c": None})]),
        ("lfm2", "The list [f(x)] is long.", None, []),
    ],
)
def test_calls_in_markup(format: str, text: str, content: str | None, calls: list[ToolCall]) -> None:
    parsed = parse_tool_calls(text, ToolFormat(format))
    assert list(parsed.calls) == calls
    assert parsed.content == (text if content is None else content)
    assert parsed.errors == ()


@pytest.mark.parametrize(
    ("format", "text", "error"),
    [
        ("qwen3_coder", "<function=add>\n<parameter=a>\n1\n</parameter> and so on", "no </function>"),
        ("glm", "<tool_call>add<arg_key>a</arg_key>1</tool_call> and so on", "no </tool_call>"),
        ("gpt_oss", "<|channel|>commentary to=functions.add<|message|>{a: 1}<|call|>", "invalid JSON"),
        ("lfm2", "<|tool_call_start|>[add(1)]<|tool_call_end|>", "invalid Python"),
        ("lfm2", "<|tool_call_start|>[add(a=open('x'))]<|tool_call_end|>", "invalid Python"),
    ],
)
def test_malformed_calls_in_markup(format: str, text: str, error: str) -> None:
    parsed = parse_tool_calls(text, ToolFormat(format))
    assert (parsed.content, parsed.calls, len(parsed.errors)) == (text, (), 1)
    assert error in parsed.errors[0]


def test_valid_calls_beside_invalid_ones_are_kept() -> None:
    text = f"<tool_call>{{</tool_call><tool_call>{CALL}</tool_call>"
    parsed = parse_tool_calls(text, ToolFormat.hermes)
    assert parsed.calls == (ADD,)
    assert len(parsed.errors) == 1
    assert parsed.content == "<tool_call>{</tool_call>"


PIECES = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "</think>", "```json", "```", "{", "}",
    "<think>", "<function=", "<parameter=", "</parameter>", "</function>", "<arg_key>", "</arg_key>", "<arg_value>",
    "<|channel|>", " to=functions.a", "<|message|>", "<|call|>", "<|tool_call_start|>", "<|tool_call_end|>", "a(b=1)",
    "[", "]", '"', "name", '"name":', '"arguments":', ":", ",", ";", "\\", "\ud800", "9" * 50, "NaN", " ", "\n", CALL,
]  # fmt: skip


@pytest.mark.parametrize("format", ToolFormat)
def test_random_texts_do_not_raise(format: ToolFormat) -> None:
    rng = random.Random(format.value)
    for _ in range(500):
        parse_tool_calls("".join(rng.choices(PIECES, k=rng.randrange(30))), format)


@pytest.mark.parametrize("format", ToolFormat)
@pytest.mark.parametrize(
    "unit",
    [
        "{", "[", '{"', '{"a":', '{"name":', '[{"a":', "[[{", "<tool_call>", "<tool_call>{", "[TOOL_CALLS]",
        "[TOOL_CALLS]a", "[TOOL_CALLS][{", "<|python_tag|>", "```", "```json ", " ", "{ ", "a", "9", '{"a":1}', CALL,
        "</think>", "\\", ";", "<think>", "<think></think>", "<function=", "<function=a>", "<parameter=a>", "<arg_key>",
        "<tool_call><arg_key>a</arg_key>", "<|message|>", " to=functions.a<|message|>", "<|tool_call_start|>[", "a(",
    ],
)  # fmt: skip
def test_repetitions_take_bounded_time(format: ToolFormat, unit: str) -> None:
    began = time.perf_counter()
    for text in (
        unit * (200_000 // len(unit)),
        "[TOOL_CALLS]" + unit * 20_000,
        '{"name":"a","arguments":' + unit * 20_000,
    ):
        parse_tool_calls(text, format)
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize(
    ("template", "format"),
    [
        ("return a json object within <tool_call></tool_call> XML tags", ToolFormat.hermes),
        ("{{- '<|python_tag|>' }}", ToolFormat.llama3),
        ('Environment: ipython ... {"name": function name, "parameters": ...}', ToolFormat.llama3),
        ("{{ '[TOOL_CALLS]' }}", ToolFormat.mistral),
        ("<tool_call>\n<function=example>", ToolFormat.qwen3_coder),
        ("<tool_call>{function-name}\n<arg_key>", ToolFormat.glm),
        ("{{ '<|start|>assistant to=functions.' }}", ToolFormat.gpt_oss),
        ("{{ '<|tool_call_start|>[' }}", ToolFormat.lfm2),
        (CHATML, ToolFormat.json),
        (None, ToolFormat.json),
    ],
)
def test_the_format_of_a_chat_template(template: str | None, format: ToolFormat) -> None:
    assert detect_tool_format(template) is format


def test_markers_that_are_special_tokens_are_decoded_but_the_stop_token_is_not() -> None:
    tokenizer = tokenizer_of(Family(CHATML, "<|im_end|>", ("<tool_call>", "</tool_call>")))
    text = f"<tool_call>{CALL}</tool_call>"
    ids = tokenizer(text + "<|im_end|>", add_special_tokens=False).input_ids
    assert "<tool_call>" not in tokenizer.decode(ids, skip_special_tokens=True)
    assert decode_with_markers(ids, tokenizer) == text
    assert decode_with_markers([], tokenizer) == ""


@pytest.mark.parametrize("format", [member for member in ToolFormat if member is not ToolFormat.gpt_oss])
@pytest.mark.parametrize("marker", MARKERS)
def test_markers_in_arguments_of_calls_without_markers(format: ToolFormat, marker: str) -> None:
    call = ToolCall("save", {"text": f"a {marker} b"})
    text = json.dumps({"name": call.name, "parameters": call.arguments})
    assert parse_tool_calls(f"Now.{text}", format) == ParsedResponse("Now.", (call,))
