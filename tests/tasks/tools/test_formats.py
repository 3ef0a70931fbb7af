"""Tool calls in responses: formats of model families, calls that cannot be parsed, and adversarial texts."""

from __future__ import annotations

import json
import random
import time

import pytest
from chats import CHATML, Family, tokenizer_of

from ippo_cli.config.schema import ToolFormat
from ippo_cli.tasks.tools.formats import (
    ParsedResponse,
    ToolCall,
    decode_with_markers,
    detect_tool_format,
    parse_tool_calls,
)

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


def test_valid_calls_beside_invalid_ones_are_kept() -> None:
    text = f"<tool_call>{{</tool_call><tool_call>{CALL}</tool_call>"
    parsed = parse_tool_calls(text, ToolFormat.hermes)
    assert parsed.calls == (ADD,)
    assert len(parsed.errors) == 1
    assert parsed.content == "<tool_call>{</tool_call>"


PIECES = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "</think>", "```json", "```", "{", "}",
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
        "</think>", "\\", ";",
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
        ("<tool_call>\n<function=example>", ToolFormat.json),
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
