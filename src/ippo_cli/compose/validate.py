"""Validation of plain values by pydantic: types, unknown and missing keys, kinds of groups; all mistakes in one pass.

The dataclasses of `config/schema/` are the schema. Each of pydantic's errors becomes *key=value; the rule; what would
work*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from pydantic_core import CoreSchema, ErrorDetails, SchemaValidator, ValidationError, core_schema

from ippo_cli.compose.aliases import find_suggestion
from ippo_cli.config.errors import ConfigError, ConfigErrors, combine_errors
from ippo_cli.config.leaves import iter_leaves
from ippo_cli.config.schema import OPTIONS, SINGLE

T = TypeVar("T")
Kinds = Mapping[str, type[Any]]
KIND_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
LIST_RULE = "must be a list"


@dataclass(frozen=True, slots=True)
class Mistake:
    """A key or a value that does not fit the schema."""

    key: str  # dotted
    value: Any
    owner: type[Any]  # schema class of the key, or of the group that does not have it
    hint: Any  # type of the value; None for an unknown key
    is_missing: bool
    kinds: tuple[str, ...] = ()  # of an unknown kind: those that the group has


class WrongConfig(ConfigErrors):
    """Mistakes of plain values. `compose/mistakes.py` explains those that were typed on the command line."""

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        super().__init__(errors)
        self.args = (str(combine_errors(errors)),)


def validate_values(cls: type[T], plain: Any, where: str = "") -> T:
    """Build an instance of a schema class from plain values. Raises `ConfigError` with all mistakes.

    `where`: the dotted name of the values and a dot.
    """
    try:
        return _validator(cls, _options()).validate_python(plain)
    except ValidationError as error:
        mistakes = _read_mistakes(cls, error, where)
        raise WrongConfig([format_mistake(mistake) for mistake in mistakes]) from None


def is_value_of(hint: Any, value: Any) -> bool:
    """Whether a value fits the type of a key that is no group; an unknown key has the type None."""
    return hint is not None and SchemaValidator(_type_schema(hint, {})).isinstance_python(value)


def find_value_mistakes(cls: type[Any], plain: Any, where: str = "") -> list[Mistake]:
    """All mistakes of plain values; a value that agents inherit from a group is a mistake of the group."""
    try:
        _validator(cls, _options()).validate_python(plain)
    except ValidationError as error:
        return _read_mistakes(cls, error, where)
    return []


def to_plain(value: Any) -> Any:
    """Plain values of an instance of a schema class: enumerations as their names in YAML."""
    if is_dataclass(value):
        return {leaf.name: to_plain(getattr(value, leaf.name)) for leaf in fields(value)}
    if isinstance(value, dict):
        return {key: to_plain(part) for key, part in value.items()}
    if isinstance(value, list):
        return [to_plain(part) for part in value]
    return value.value if isinstance(value, Enum) else value


def sort_keys(hint: Any, plain: Any) -> Any:
    """Plain values with their keys in the order of the schema; keys that it does not have are last."""
    if not isinstance(plain, dict):
        return plain
    order = dict.fromkeys([*(_hints(hint) if is_dataclass(hint) else ()), *plain])
    return {key: sort_keys(_class_below(hint, key, plain[key]), plain[key]) for key in order if key in plain}


def _class_below(hint: Any, key: str, value: Any) -> Any:
    """The type of a key with this value: the class of its kind, if it is a group."""
    below = _type_below(hint, key)
    kinds = _kinds_of_field(key, below)
    return kinds.get(str(value.get("kind")), below) if isinstance(value, dict) else below


def format_mistake(mistake: Mistake) -> ConfigError:
    """The error of a mistake in a file, or in the configuration of a run."""
    key, value = mistake.key, mistake.value
    if mistake.is_missing:
        return ConfigError(key, "is missing", "every key needs a value")
    if mistake.hint is None:
        return _unknown_key_error(mistake)
    return ConfigError(f"{key}={'null' if value is None else value}", *value_rule(mistake))


def value_rule(mistake: Mistake, default: Any = None) -> tuple[str, str]:
    """The rule that a value breaks, and the remedy. `default`: the value of the key in the YAML files."""
    key, hint = mistake.key, mistake.hint
    if mistake.kinds:
        return "is not known", "use one of " + " ".join(mistake.kinds)
    if mistake.value is None and NoneType not in get_args(hint):
        return "must not be null", f"set a value, or remove {key}"
    members = [part for part in get_args(hint) if part is not NoneType] if _is_union(hint) else [hint]
    is_number = isinstance(default, int | float) and not isinstance(default, bool)
    rule = f"must be {describe_type(hint)}"
    (first, *others) = members
    if others:
        return rule, f"use {' or '.join(map(describe_type, members))}"
    if _is_enum(first):
        return "is not known", "use one of " + " ".join(member.value for member in first)
    if first is float:
        return rule, f"use one such as {key}={default if is_number else 0.1:g}"
    if first is int:
        return rule, f"use one such as {key}={default if is_number else 2:.0f}"
    if first is bool:
        return rule, f"use {key}=true or {key}=false"
    if get_origin(first) is list:
        return LIST_RULE, f"write '{key}=[a,b]'"
    if is_dataclass(first):
        return "must be a mapping", "it has: " + " ".join(leaf.name for leaf in fields(first))
    if get_origin(first) is dict:
        return "must be a mapping", f"write '{key}={{name:value}}'"
    return rule, f"write '{key}=\"some text\"'"


def describe_type(hint: Any) -> str:
    """Describe a type in words."""
    if get_origin(hint) is list:
        (item,) = get_args(hint)
        return "a list" + (f" of {' '.join(part.value for part in item)}" if _is_enum(item) else "")
    if get_origin(hint) is dict or is_dataclass(hint):
        return "a mapping"
    if _is_union(hint):
        return " or ".join(map(describe_type, get_args(hint)))
    if _is_enum(hint):
        return "one of " + " ".join(member.value for member in hint)
    return "null" if hint is NoneType else KIND_NAMES.get(hint, str(hint))


def _unknown_key_error(mistake: Mistake) -> ConfigError:
    """The error of a key that its group does not have; a key of another project has the answer of `peers.yaml`."""
    full_key, _ = next(iter_leaves(mistake.value, mistake.key))
    if (of_kind := kind_rule(mistake)) is not None:
        setting = mistake.key if isinstance(mistake.value, dict) else f"{mistake.key}={mistake.value}"
        return ConfigError(setting, *of_kind)
    if (suggestion := find_suggestion(full_key)) is not None:
        return ConfigError(full_key, suggestion.rule, suggestion.remedy)
    known = " ".join(key.name for key in fields(mistake.owner))
    return ConfigError(mistake.key, "is an unknown key", f"use one of {known}")


def kind_rule(mistake: Mistake) -> tuple[str, str] | None:
    """Rule and remedy of a key that other kinds of its group have; None for other keys."""
    *above, leaf = mistake.key.split(".")
    for group, kinds in OPTIONS.items():
        own = next((kind for kind, cls in kinds.items() if cls is mistake.owner), None)
        others = [kind for kind, cls in kinds.items() if leaf in {key.name for key in fields(cls)}]
        if own and others:
            place = ".".join(above) if above[-1:] == [group] else group
            return f"is not a key of {group}={own}", "use " + " or ".join(f"{place}={kind}" for kind in others)
    return None


def _read_mistakes(cls: type[Any], error: ValidationError, where: str) -> list[Mistake]:
    found = [_read_mistake(cls, details, where) for details in error.errors(include_url=False)]
    of_groups = {(mistake.key, str(mistake.value)) for mistake in found}
    return [
        mistake
        for mistake in found
        if not mistake.key.startswith("task.agents.")
        or (mistake.key.split(".", 3)[-1], str(mistake.value)) not in of_groups
    ]


def _read_mistake(cls: type[Any], details: ErrorDetails, where: str) -> Mistake:
    """Find key and type of an error: pydantic's location also has the kinds of groups."""
    location, value = list(details["loc"]), details["input"]
    owner: Any = cls
    hint: Any = cls
    key = where.removesuffix(".")
    name = ""  # of the last field
    while location:
        part = location.pop(0)
        kinds = _kinds_of_field(name, hint)
        if part in kinds:  # the tag of a union
            hint, name = kinds[str(part)], ""  # a key may have the name of a kind, as rollout.vllm
            continue
        owner, name = (hint, str(part)) if is_dataclass(hint) else (owner, name)
        key = f"{key}[{part}]" if isinstance(part, int) else f"{key}.{part}".lstrip(".")
        hint = _type_below(hint, part)
    if details["type"].startswith("union_tag") and isinstance(value, dict):
        kinds = tuple(_kinds_of_field(name, hint))
        return Mistake(f"{key}.kind", value.get("kind"), hint, str, "kind" not in value, kinds)
    return Mistake(key, value, owner, hint, details["type"] == "missing")


def _type_below(hint: Any, part: str | int) -> Any:
    """The type of a field of a class, or of a value in a list or mapping; None if there is none."""
    if is_dataclass(hint):
        return _hints(hint).get(str(part))
    members = get_args(hint) if _is_union(hint) else (hint,)
    inner = [get_args(member)[-1] for member in members if get_origin(member) in (list, dict)]
    return inner[0] if inner else hint


def _kinds_of_field(name: str, hint: Any) -> Kinds:
    """The schema class of every kind that the value of a field may have; empty for other fields."""
    kinds = OPTIONS.get(name, {})
    has_kind = is_dataclass(hint) and "kind" in _hints(hint)
    return kinds if has_kind and SINGLE not in kinds else {}


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _options() -> tuple[tuple[str, tuple[tuple[str, type[Any]], ...]], ...]:
    """The registered options, as a key of the cache of validators: packages may register more."""
    return tuple((group, tuple(kinds.items())) for group, kinds in OPTIONS.items())


@cache
def _validator(cls: type[Any], options: object) -> SchemaValidator:
    definitions: dict[str, CoreSchema] = {}
    root = _class_schema(cls, definitions)
    return SchemaValidator(core_schema.definitions_schema(root, list(definitions.values())))


def _class_schema(cls: type[Any], definitions: dict[str, CoreSchema]) -> CoreSchema:
    """The schema of a dataclass: a reference to its definition, which is added to `definitions`."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    if name not in definitions:
        parts = [
            core_schema.dataclass_field(leaf.name, _field_schema(leaf, _hints(cls)[leaf.name], definitions))
            for leaf in fields(cls)
        ]
        arguments = core_schema.dataclass_args_schema(cls.__name__, parts, extra_behavior="forbid")
        definitions[name] = core_schema.dataclass_schema(cls, arguments, [leaf.name for leaf in fields(cls)], ref=name)
    return core_schema.definition_reference_schema(name)


def _field_schema(leaf: Field[Any], hint: Any, definitions: dict[str, CoreSchema]) -> CoreSchema:
    if kinds := _kinds_of_field(leaf.name, hint):
        choices = {kind: _class_schema(cls, definitions) for kind, cls in kinds.items()}
        return core_schema.tagged_union_schema(choices, "kind")
    schema = _type_schema(hint, definitions)
    if is_dataclass(hint) or (leaf.default is MISSING and leaf.default_factory is MISSING):
        return schema
    if leaf.default is not MISSING:
        return core_schema.with_default_schema(schema, default=leaf.default)
    return core_schema.with_default_schema(schema, default_factory=leaf.default_factory)  # type: ignore[arg-type]


def _type_schema(hint: Any, definitions: dict[str, CoreSchema]) -> CoreSchema:
    """The schema of a type. Numbers and text may be written as each other, as on a command line and in YAML."""
    if hint is Any:
        return core_schema.any_schema()
    if is_dataclass(hint):
        return _class_schema(hint, definitions)  # type: ignore[arg-type]
    if _is_enum(hint):
        return core_schema.enum_schema(hint, list(hint), sub_type="str")
    if get_origin(hint) is list:
        return core_schema.list_schema(_type_schema(get_args(hint)[0], definitions), strict=True)
    if get_origin(hint) is dict:
        keys, values = (_type_schema(part, definitions) for part in get_args(hint))
        return core_schema.dict_schema(keys, values, strict=True)
    if _is_union(hint):
        return _union_schema(get_args(hint), definitions)
    if hint is bool:
        return core_schema.bool_schema()
    if hint is str:
        return core_schema.no_info_before_validator_function(_read_text, SCALARS[str])
    return core_schema.no_info_before_validator_function(_read_number(hint), SCALARS[hint])


def _union_schema(members: Sequence[Any], definitions: dict[str, CoreSchema]) -> CoreSchema:
    others = [part for part in members if part is not NoneType]
    if len(others) == 1:
        schema = _type_schema(others[0], definitions)
    else:  # without conversions, since every number could be text
        schema = core_schema.union_schema(
            [SCALARS[part] for part in others], custom_error_type="union", custom_error_message="no member fits"
        )
    return core_schema.nullable_schema(schema) if NoneType in members else schema


SCALARS: dict[Any, CoreSchema] = {
    int: core_schema.int_schema(strict=True),
    float: core_schema.float_schema(strict=True),
    bool: core_schema.bool_schema(strict=True),
    str: core_schema.str_schema(strict=True),
}


def _read_text(value: Any) -> Any:
    return str(value) if isinstance(value, int | float) else value


@cache
def _read_number(kind: type[int] | type[float]) -> Callable[[Any], Any]:
    def read(value: Any) -> Any:
        try:
            return kind(value) if isinstance(value, str) else value
        except ValueError:
            return value

    return read


def _is_union(hint: Any) -> bool:
    return bool(get_args(hint)) and get_origin(hint) not in (list, dict)


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum)
