"""Templates that are more than text with fields: Jinja in a sandbox, and Python functions of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from numbers import Real
from typing import Any, NoReturn

from jinja2 import StrictUndefined, Template, TemplateError, TemplateRuntimeError, nodes
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import MAX_RANGE, ImmutableSandboxedEnvironment

from ippo_cli.config.errors import ConfigError, IppoError
from ippo_cli.config.python_names import is_function_path
from ippo_cli.types import Example
from ippo_cli.user_code.errors import format_user_error
from ippo_cli.user_code.load import load_function

JINJA = "jinja:"  # what a template of this kind begins with
SPEAKERS = "agents"  # the variable for what agents said last, by name


class NullField(ConfigError):
    """A template writes a field that is null."""


class _NullRendered(Exception):
    """Raised while a template is written; with the field's name where it is known."""


class _Null:
    """A field that is null: false, equal to none, and no text, not even for a filter that would make `NONE` of it."""

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
    if value is None:  # the word None is nothing that anybody meant to say
        raise _NullRendered
    if isinstance(value, list | tuple | set | Mapping | bytes):
        raise TypeError(f"it writes {value!r:.40} as Python does; use a filter, such as join(', ') or tojson")
    return value


def is_missing(value: Any) -> bool:
    """Whether a field has no value: null, or the NaN that tables of numbers have in its place."""
    return value is None or (isinstance(value, Real) and value != value)


def _is_none(value: Any) -> bool:
    return value is None or isinstance(value, _Null)


ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=StrictUndefined, keep_trailing_newline=True, finalize=_finalize_value, autoescape=False
)
ENVIRONMENT.tests["none"] = _is_none


def _raise_not_deterministic(*_: Any) -> NoReturn:
    raise TemplateRuntimeError("random says something else on every rank and whenever a run goes on")


# Both draw from Python's global stream.
ENVIRONMENT.filters["random"] = ENVIRONMENT.globals["lipsum"] = _raise_not_deterministic


class _Range:
    """`range` of one rendering: all that it makes together is bounded, so that loops within loops come to an end."""

    def __init__(self) -> None:
        self.left = MAX_RANGE

    def __call__(self, *bounds: int) -> range:
        numbers = range(*bounds)
        self.left -= len(numbers)
        if self.left < 0:
            raise OverflowError(f"its ranges have more than {MAX_RANGE} numbers together")
        return numbers


def is_jinja(template: str) -> bool:
    """Whether a template is one of Jinja's."""
    return template.startswith(JINJA)


def is_function(template: str) -> bool:
    """Whether a template names a function, `path.py:name`."""
    return is_function_path(template)


def jinja_fields(template: str, setting: str) -> set[str]:
    """The variables that it reads; what an agent said last as `agents.NAME`."""
    _, tree = _compile_template(template, setting)
    said = {f"{SPEAKERS}.{name}" for name in _agent_names(tree)}
    return (find_undeclared_variables(tree) - {SPEAKERS}) | said


def render_jinja(template: str, values: Mapping[str, Any], setting: str) -> str:
    """The template with these values; those named `agents.NAME` are members of `agents`."""
    compiled, _ = _compile_template(template, setting)
    flat = {
        name: _Null(name) if is_missing(value) else value
        for name, value in values.items()
        if not name.startswith(f"{SPEAKERS}.")
    }
    last_texts = {name.partition(".")[2]: value for name, value in values.items() if name.startswith(f"{SPEAKERS}.")}
    shown = f"{setting}={template!r:.80}"
    try:
        return compiled.render({"range": _Range()} | flat | ({SPEAKERS: last_texts} if last_texts else {}))
    except _NullRendered as error:
        raise NullField(
            shown,
            f"writes a field that is null in an example{''.join(f' ({name!r})' for name in error.args)}",
            "fill it in, or test it in the template",
        ) from error
    except TemplateError as error:
        there = " ".join(values)
        raise ConfigError(shown, f"cannot be written ({error})", f"there is: {there}") from error
    except Exception as error:  # what a template computes may go wrong in any way
        raise ConfigError(shown, f"cannot be written ({type(error).__name__}: {error})", "correct it there") from error


def call_template_function(template: str, example: Example, conversation: Mapping[str, Any], setting: str) -> str:
    """What the function `function(example)` or `function(example, told)` says."""
    function, takes_conversation = _load_template_function(template, setting)
    shown = f"{setting}={template}"
    try:
        text = function(dict(example), dict(conversation)) if takes_conversation else function(dict(example))
    except IppoError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(shown, f"fails ({format_user_error(error)})", "correct it there") from error
    if not isinstance(text, str):
        raise ConfigError(shown, f"returns {text!r:.60}, which is no text", "return what the agent is told")
    return text


@cache
def _load_template_function(template: str, setting: str) -> tuple[Callable[..., Any], bool]:
    function = load_function(template, setting)
    try:
        given = [p for p in inspect.signature(function).parameters.values() if p.kind <= p.POSITIONAL_OR_KEYWORD]
    except (TypeError, ValueError):
        return function, False
    return function, len([p for p in given if p.default is p.empty]) > 1


@cache
def _compile_template(template: str, setting: str) -> tuple[Template, nodes.Template]:
    text = template.removeprefix(JINJA)
    text = text.removeprefix(" ")
    try:
        return ENVIRONMENT.from_string(text), ENVIRONMENT.parse(text)
    except TemplateError as error:
        raise ConfigError(
            f"{setting}={template!r:.80}",
            f"is no template of Jinja's ({error})",
            "correct the template, or leave out jinja:",
        ) from error


def _agent_names(tree: nodes.Template) -> Iterator[str]:
    """Names that are read of `agents`, as attributes or items."""
    for found in tree.find_all(nodes.Getattr):
        if isinstance(found.node, nodes.Name) and found.node.name == SPEAKERS:
            yield found.attr
    for found in tree.find_all(nodes.Getitem):
        named = isinstance(found.node, nodes.Name) and found.node.name == SPEAKERS
        if named and isinstance(found.arg, nodes.Const):
            yield str(found.arg.value)
