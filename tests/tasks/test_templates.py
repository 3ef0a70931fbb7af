"""Templates: what an example and a conversation say, put into text."""

from __future__ import annotations

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.tasks.templates import render_template


@pytest.mark.parametrize(
    ("template", "filled"),
    [
        ("{a}<", "x<"),
        ("{a}{b}{a}", "x2x"),
        ("no field", "no field"),
        ("", ""),
        ('{{"key": {a}}}', '{"key": x}'),
        ("{{{a}}}", "{x}"),
        ("{c}", "{a}"),  # what an example says is never a template
        ("{d.e}", "dotted"),
        ("line\n{a}\t", "line\nx\t"),
    ],
)
def test_fields_are_replaced_and_double_braces_are_braces(template: str, filled: str) -> None:
    assert render_template(template, {"a": "x", "b": 2, "c": "{a}", "d.e": "dotted"}, "where") == filled


@pytest.mark.parametrize(
    ("template", "rule"),
    [
        ("{x}", "names the field 'x', which examples do not have; they have: a b"),
        ("{}", "names the field '', which"),
        ("{0}", "names the field '0', which"),
        ("{a.b}", "names the field 'a.b', which"),
        ("{a:>8}", "formats the field 'a', .*; write {a}, or {{ and }} for braces"),
        ("{a!r}", "formats the field 'a'"),
        ('{"key": 1}', "formats the field '\"key\"'"),
        ("{a", "is no template .*; write {{ and }} for braces"),
        ("a}", "is no template"),
        ("{n}", "names the field 'n', which is null in an example"),
    ],
)
def test_a_template_that_does_not_fit_is_a_mistake_in_the_configuration(template: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule) as raised:
        render_template(
            template, {"a": "x", "b": 2, **({"n": None} if "n}" in template else {})}, "task.agents.low.template"
        )
    assert str(raised.value).startswith(f"task.agents.low.template={template!r} ")
