"""Prompt templates: plain, Jinja, functions and messages."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import PromptConfig
from ippo_cli.tasks.messages import MessagesText
from ippo_cli.tasks.templates import can_read_others, example_fields, first_message, render_template, template_fields


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{a}<", "x<"),
        ("{a}{b}{a}", "x2x"),
        ("no field", "no field"),
        ("", ""),
        ('{{"key": {a}}}', '{"key": x}'),
        ("{{{a}}}", "{x}"),
        ("{c}", "{a}"),  # field values are not templates
        ("{d.e}", "dotted"),
        ("line\n{a}\t", "line\nx\t"),
    ],
)
def test_fields_and_double_braces_are_replaced(template: str, filled: str) -> None:
    assert render_template(template, {"a": "x", "b": 2, "c": "{a}", "d.e": "dotted"}, "where") == filled


@pytest.mark.parametrize(
    ("template", "rule"),
    [
        ("{x}", "names the field 'x', which examples do not have; their fields: a b"),
        ("{}", "names the field '', which"),
        ("{0}", "names the field '0', which"),
        ("{a.b}", "names the field 'a.b', which"),
        ("{a:>8}", "formats the field 'a', .*; write {a}, or {{ and }} for braces"),
        ("{a!r}", "formats the field 'a'"),
        ('{"key": 1}', "formats the field '\"key\"'"),
        ("{a", "is not a valid template .*; write {{ and }} for braces"),
        ("a}", "is not a valid template"),
        ("{n}", "names the field 'n', which is null in an example"),
    ],
)
def test_invalid_template_is_rejected(template: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule) as raised:
        render_template(
            template, {"a": "x", "b": 2, **({"n": None} if "n}" in template else {})}, "task.agents.low.template"
        )
    assert str(raised.value).startswith(f"task.agents.low.template={template!r} ")


SHOTS = "jinja:{% for shot in shots %}{{ shot.q }}={{ shot.a }}\n{% endfor %}{{ q | upper }}="
ROW = {"q": "x", "shots": [{"q": "a", "a": 1}, {"q": "b", "a": 2}], "nothing": None}


def test_jinja_template_has_statements_and_filters() -> None:
    assert render_template(SHOTS, ROW, "where") == "a=1\nb=2\nX="
    assert template_fields(SHOTS, "where") == {"shots", "q"}
    result = {"turn": "2", "agents.low": "hm", "agents.high": None}
    assert render_template("jinja: {{ turn }} {{ agents.low }}{{ agents['low'] }}", ROW, "where", result) == "2 hmhm"
    assert template_fields("jinja: {{ agents.low }} {{ q }}", "where") == {"agents.low", "q"}
    assert can_read_others("jinja: {{ agents.low }}", "where", {"agents.high"})
    assert not can_read_others("jinja: {{ q }}", "where", set())


@pytest.mark.parametrize(
    ("template", "rule"),
    [
        ("jinja:{{ other }}", "cannot be rendered .*'other' is undefined.*available variables: q shots nothing"),
        ("jinja:{{ nothing }}", "writes a field that is null"),
        ("jinja:{% for %}", "is not a valid Jinja template"),
        ("jinja:{{ q.__class__.__mro__ }}", "cannot be rendered .*unsafe"),
        ("jinja:{{ shots.append(1) }}", "cannot be rendered"),
        ("jinja:{{ 1 // 0 }}", "cannot be rendered .ZeroDivisionError"),
        ("jinja:{{ agents.low }}", "cannot be rendered"),
        ("jinja:{{ shots | random }}", "cannot be rendered .random is not deterministic across ranks and resumes"),
        ("jinja:{{ lipsum() }}", "cannot be rendered .random"),
        ("jinja:{% for i in range(10**9) %}{% endfor %}", "its ranges yield more than 100000 numbers in total"),
        (
            "jinja:{% for i in range(10**5) %}{% for j in range(10**5) %}{% endfor %}{% endfor %}",
            "its ranges yield more than 100000 numbers in total",
        ),
    ],
)
def test_jinja_errors_and_unsafe_operations_are_rejected(template: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule) as raised:
        render_template(template, ROW, "task.agents.a.template")
    assert raised.value.exit_code == 2


FORMATTERS = """
def plain(example):
    return f"Q: {example['q']}"

def render(example, values):
    return example["q"] + values["heard"]

def number(example):
    return 7

def failing(example):
    return example["missing"]
"""


def test_function_template(tmp_path: Path) -> None:
    (tmp_path / "prompts.py").write_text(FORMATTERS)
    file = tmp_path / "prompts.py"
    assert render_template(f"{file}:plain", ROW, "where") == "Q: x"
    assert render_template(f"{file}:render", ROW, "where", {"heard": "!", "agents.low": None}) == "x!"
    assert first_message("a", PromptConfig(template=f"{file}:render"), ROW) == "x", "messages are not known yet"
    assert first_message("a", PromptConfig(template="{turn}"), ROW) == "1"
    assert first_message("a", PromptConfig(template="jinja:{{ turn }}"), ROW) == "1"
    assert can_read_others(f"{file}:plain", "where", set()), "a function may read all fields"
    for name, rule in (
        ("number", "returns 7, which is not a string"),
        ("failing", r"fails \(.*KeyError: 'missing'"),
        ("absent", "names no function in .*it has: failing number plain render"),
    ):
        with pytest.raises(ConfigError, match=rule):
            render_template(f"{file}:{name}", ROW, "where")
    assert render_template("see prompts.py:plain", ROW, "where") == "see prompts.py:plain", (
        "plain text that contains a function path"
    )


def test_example_fields_excludes_conversation_fields() -> None:
    asked = PromptConfig(template="{b} {heard} {a}", turn_template="{agents.low} {b} {c} {observation}")
    assert example_fields(asked, "where") == ["b", "a", "c"]
    assert example_fields(PromptConfig(template=SHOTS), "where") == ["q", "shots"]


LIST, TALK = ["2", "4"], [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize("leaf", ["template", "turn_template", "answer"])
@pytest.mark.parametrize(
    ("value", "rule"),
    [
        (LIST, r"it is a list in an example; write 'jinja:\{\{ x \| join"),
        ({"a": 1}, r"it is an object in an example; use task\.columns\.x=x\.a"),
        (b"abc", r"it is bytes in an example"),
        (TALK, "it is a list in an example"),
    ],
)
def test_plain_template_rejects_non_text_values(leaf: str, value: object, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        render_template("{x}", {"x": value}, f"task.agents.solo.{leaf}")
    with pytest.raises(ConfigError, match=r"Python form of .*; use a filter"):
        render_template("jinja:{{ x }}", {"x": value}, f"task.agents.solo.{leaf}")


def test_error_for_messages_in_plain_template_names_remedy() -> None:
    with pytest.raises(ConfigError, match=r"use task\.agents\.solo\.template=messages:x, which reads it as messages"):
        render_template("{x}", {"x": TALK}, "task.agents.solo.template")


CALL = {"id": "call00000", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
READ_CALL = CALL | {"function": {"name": "add", "arguments": {"a": 1}}}
RESULT = {"role": "tool", "tool_call_id": "call00000", "content": "2"}
SYSTEM = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("value", "messages", "text"),
    [
        (TALK, TALK, "Hi"),
        (SYSTEM, SYSTEM, "system: Be brief.\n\nuser: Hi"),
        (json.dumps(SYSTEM), SYSTEM, "system: Be brief.\n\nuser: Hi"),
        ([{"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": None}], TALK, "Hi"),
        (
            [*TALK, {"role": "assistant", "content": None, "tool_calls": [CALL]}, RESULT],
            [*TALK, {"role": "assistant", "content": "", "tool_calls": [READ_CALL]}, RESULT],
            'user: Hi\n\nassistant: add({"a": 1})\n\ntool: 2',
        ),
    ],
)
@pytest.mark.parametrize("template", ["messages:x", "messages:{x}", "messages: x"])
def test_messages_template(value: object, messages: object, text: str, template: str) -> None:
    made = render_template(template, {"x": value}, "task.agents.solo.template")
    assert isinstance(made, MessagesText)
    assert (str(made), made.messages) == (text, messages)
    assert pickle.loads(pickle.dumps(made)).messages == messages
    assert template_fields(template, "task.agents.solo.template") == {"x"}


@pytest.mark.parametrize(
    ("value", "rule"),
    [
        ("Hi", "needs a list of messages with role and content"),
        ([], "needs a list of messages"),
        ([*TALK, {"role": "assistant", "content": "Yo"}], "ends in a message of role 'assistant'"),
        (
            [{"role": "critic", "content": "x"}, *TALK],
            "has a message of role 'critic'; roles are system user assistant",
        ),
        ([{"role": "tool", "content": "x"}, *TALK], "has a message of role 'tool' without a message with tool_calls"),
        ([{"role": "user", "tool_calls": [CALL]}, *TALK], "tool_calls that are not a list in a message of role 'assis"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": "add"}}]}, *TALK], "has a tool call without a"),
        ([{"role": "assistant", "content": None}, *TALK], "with content that is not text"),
        ([{"role": "user", "content": [{"type": "image", "url": "x"}]}], "with content that is not text"),
        (None, "which is null in an example"),
    ],
)
def test_messages_template_rejects_invalid_values(value: object, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        render_template("messages:x", {"x": value}, "task.agents.solo.template")


def test_messages_template_is_only_for_first_prompts() -> None:
    for setting in ("task.agents.solo.answer", "task.agents.solo.turn_template", "reward.template"):
        with pytest.raises(ConfigError, match="is only supported for first prompts"):
            render_template("messages:x", {"x": TALK}, setting)


def test_function_in_folder_with_a_space(tmp_path: Path) -> None:
    (tmp_path / "my prompts").mkdir()
    (tmp_path / "my prompts" / "p.py").write_text("def solver(example):\n    return 'Q: ' + example['q']\n")
    template = f"{tmp_path}/my prompts/p.py:solver"
    assert render_template(template, {"q": "a"}, "task.agents.solo.template") == "Q: a"
    assert render_template("Fix main.py:run", {"q": "a"}, "task.agents.solo.template") == "Fix main.py:run"


@pytest.mark.parametrize("template", ["{x}", "jinja:{{ x }}"])
def test_nan_is_a_missing_value(template: str) -> None:
    with pytest.raises(ConfigError, match=r"NaN|null"):
        render_template(template, {"x": float("nan")}, "task.agents.solo.template")


@pytest.mark.parametrize("value", [range(3), {1}, b"x"])
def test_collections_are_rejected_as_text(value: object) -> None:
    with pytest.raises(ConfigError, match="as text"):
        render_template("{x}", {"x": value}, "task.agents.solo.answer")


@pytest.mark.parametrize("part", [{"function_call": {"name": "f"}}, {"images": ["a.png"]}])
def test_messages_with_non_text_parts_are_rejected(part: dict[str, object]) -> None:
    messages = [{"role": "user", "content": "a", "tool_calls": None, "images": []} | part]
    with pytest.raises(ConfigError, match=f"with {next(iter(part))}"):
        render_template("messages:x", {"x": messages}, "task.agents.solo.template")
    kept = [{"role": "user", "content": "a", "tool_calls": None, "images": []}]
    assert render_template("messages:x", {"x": kept}, "task.agents.solo.template") == "a"
