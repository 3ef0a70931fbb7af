"""Templates in sandboxed Jinja, and templates that are Python functions of the user."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from numbers import Real
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import (
    StrictUndefined,
    Template,
    TemplateError,
    TemplateRuntimeError,
    TemplateSyntaxError,
    nodes,
)
from jinja2.ext import Extension
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment

from ippo_cli.config.errors import ConfigError, IppoError
from ippo_cli.config.python_names import is_function_path
from ippo_cli.types import Example
from ippo_cli.user_code.errors import format_user_error
from ippo_cli.user_code.load import load_function

JINJA = "jinja:"  # prefix of Jinja templates
SPEAKERS = "agents"  # template variable: the last response of each agent, by name


class NullField(ConfigError):
    """A template renders a field that is null."""


class _NullRendered(Exception):
    """Raised during rendering; its argument is the field's name, if known."""


class _Null:
    """A null field: false, equal to None, and an error when it is converted to text (also inside a filter)."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __bool__(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return other is None or isinstance(other, _Null)

    def __hash__(self) -> int:
        return hash(None)

    def __str__(self) -> str:
        raise _NullRendered(self.name)

    __repr__ = __str__


def _finalize_value(value: Any) -> Any:
    if value is None:  # rendering the word None is never intended
        raise _NullRendered
    if isinstance(value, list | tuple | set | Mapping | bytes):
        raise TypeError(f"it would write the Python form of {value!r:.40}; use a filter, such as join(', ') or tojson")
    return value


def is_missing(value: Any) -> bool:
    """Whether a field has no value: null, or NaN, which represents null in numeric tables."""
    return value is None or (isinstance(value, Real) and value != value)


def _is_none(value: Any) -> bool:
    return value is None or isinstance(value, _Null)


class _GenerationTag(Extension):
    """`{% generation %}` of transformers, which marks the responses in a chat template: here it is only parsed."""

    tags = {"generation"}  # noqa: RUF012 (an attribute of jinja2's class)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


CHAT_ENVIRONMENT = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols", _GenerationTag])
ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=StrictUndefined, keep_trailing_newline=True, finalize=_finalize_value, autoescape=False
)
ENVIRONMENT.tests["none"] = _is_none


def _raise_not_deterministic(*_: Any) -> NoReturn:
    raise TemplateRuntimeError("random is not deterministic across ranks and resumes")


# Both use Python's global random generator.
ENVIRONMENT.filters["random"] = ENVIRONMENT.globals["lipsum"] = _raise_not_deterministic


class _Range:
    """`range` with a limit on the total count per rendering, so that nested loops terminate."""

    def __init__(self) -> None:
        self.remaining = MAX_RANGE

    def __call__(self, *bounds: int) -> range:
        numbers = range(*bounds)
        self.remaining -= len(numbers)
        if self.remaining < 0:
            raise OverflowError(f"its ranges yield more than {MAX_RANGE} numbers in total")
        return numbers


def is_jinja(template: str) -> bool:
    """Whether a template is a Jinja template."""
    return template.startswith(JINJA)


def is_function(template: str) -> bool:
    """Whether a template names a function, `path.py:name`."""
    return is_function_path(template)


def jinja_fields(template: str, setting: str) -> set[str]:
    """Return the variables that a template reads; the last response of an agent is `agents.NAME`."""
    _, tree = _compile_template(template, setting)
    agent_fields = {f"{SPEAKERS}.{name}" for name in _agent_names(tree)}
    return (find_undeclared_variables(tree) - {SPEAKERS}) | agent_fields


def render_jinja(template: str, values: Mapping[str, Any], setting: str) -> str:
    """Render a template; values named `agents.NAME` become items of `agents`. Raises `ConfigError`."""
    compiled, _ = _compile_template(template, setting)
    flat = {
        name: _Null(name) if is_missing(value) else value
        for name, value in values.items()
        if not name.startswith(f"{SPEAKERS}.")
    }
    last_texts = {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{SPEAKERS}.")}
    setting_text = f"{setting}={template!r:.80}"
    try:
        return compiled.render({"range": _Range()} | flat | ({SPEAKERS: last_texts} if last_texts else {}))
    except _NullRendered as error:
        raise NullField(
            setting_text,
            f"writes a field that is null in an example{''.join(f' ({name!r})' for name in error.args)}",
            "fill in the field, or test for null in the template",
        ) from error
    except TemplateError as error:
        raise ConfigError(
            setting_text, f"cannot be rendered ({error})", f"available variables: {' '.join(values)}"
        ) from error
    except Exception as error:  # expressions in a template can raise anything
        raise ConfigError(
            setting_text, f"cannot be rendered ({type(error).__name__}: {error})", "fix the error there"
        ) from error


def call_template_function(template: str, example: Example, conversation: Mapping[str, Any], setting: str) -> str:
    """Call a template function, `function(example)` or `function(example, conversation)`, and return its text."""
    function, takes_conversation = _load_template_function(template, setting)
    setting_text = f"{setting}={template}"
    try:
        text = function(dict(example), dict(conversation)) if takes_conversation else function(dict(example))
    except IppoError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(setting_text, f"fails ({format_user_error(error)})", "fix the error there") from error
    if not isinstance(text, str):
        raise ConfigError(setting_text, f"returns {text!r:.60}, which is not a string", "return the text as a string")
    return text


@cache
def _load_template_function(template: str, setting: str) -> tuple[Callable[..., Any], bool]:
    function = load_function(template, setting)
    try:
        positional = [p for p in inspect.signature(function).parameters.values() if p.kind <= p.POSITIONAL_OR_KEYWORD]
    except (TypeError, ValueError):
        return function, False
    return function, len([p for p in positional if p.default is p.empty]) > 1


@cache
def _compile_template(template: str, setting: str) -> tuple[Template, nodes.Template]:
    text = template.removeprefix(JINJA)
    text = text.removeprefix(" ")
    try:
        return ENVIRONMENT.from_string(text), ENVIRONMENT.parse(text)
    except TemplateError as error:
        raise ConfigError(
            f"{setting}={template!r:.80}",
            f"is not a valid Jinja template ({error})",
            "fix the template, or remove the prefix jinja:",
        ) from error


def read_chat_template(file: str, setting: str) -> str:
    """The text of a file with a chat template; `setting` is its key. Raises `ConfigError`."""
    named = f"{setting}={file}"
    try:
        text = Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(named, f"is not a text in UTF-8 ({error.reason})", "save it in UTF-8") from error
    except OSError as error:
        raise ConfigError(
            named, f"cannot be read ({error.strerror})", "give the path of a file with a chat template in Jinja"
        ) from error
    if not text.strip():
        raise ConfigError(named, "is empty", "write a chat template into it, or remove the key")
    try:
        CHAT_ENVIRONMENT.parse(text)
    except TemplateSyntaxError as error:
        rule = f"is not a valid Jinja template (line {error.lineno}: {error.message})"
        raise ConfigError(named, rule, "fix the template") from error
    return text


@cache
def find_template_variables(text: str) -> frozenset[str] | None:
    """The variables that a chat template reads; None if it has tags that only transformers knows."""
    try:
        return frozenset(find_undeclared_variables(CHAT_ENVIRONMENT.parse(text)))
    except TemplateError:
        return None


def _agent_names(tree: nodes.Template) -> Iterator[str]:
    """Yield the agent names that a template reads, as `agents.NAME` or `agents["NAME"]`."""
    for found in tree.find_all(nodes.Getattr):
        if isinstance(found.node, nodes.Name) and found.node.name == SPEAKERS:
            yield found.attr
    for found in tree.find_all(nodes.Getitem):
        named = isinstance(found.node, nodes.Name) and found.node.name == SPEAKERS
        if named and isinstance(found.arg, nodes.Const):
            yield str(found.arg.value)
