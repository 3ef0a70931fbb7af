"""Keys of a user's code: fields of the dataclass `Keys` of a class, or keyword-only parameters of a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from ippo_cli.config.constraints import constraint_from_hint
from ippo_cli.config.errors import ConfigError, combine_errors
from ippo_cli.user_code.errors import format_user_error

TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
ACCEPTED = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}


def check_names(found: Callable[..., Any], setting: str, args_key: str, args: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for a key in `args` that the code does not have."""
    known = _list_keys(found)
    for unknown in args.keys() - known:
        form = "give the class a dataclass Keys with this field"
        form = form if inspect.isclass(found) else "make it a keyword-only parameter"
        remedy = f"use one of {' '.join(sorted(known))}" if known else f"remove it, or {form}"
        raise ConfigError(f"{args_key}.{unknown}={args[unknown]}", f"is not a key of {setting}", remedy)


def build_keys(found: type[Any], setting: str, args_key: str, args: Mapping[str, Any]) -> Any:
    """The `Keys` of a class from their values; None without. Raises `ConfigError` for names, types and ranges."""
    check_names(found, setting, args_key, args)
    if (keys_of := getattr(found, "Keys", None)) is None:
        return None
    try:
        hints = _read_hints(keys_of)
        if mistakes := [
            ConfigError(f"{args_key}.{name}={'null' if value is None else value}", *mistake)
            for name, value in args.items()
            if (mistake := _find_mistake(hints.get(name, Any), value)) is not None
        ]:
            raise combine_errors(mistakes)
        return keys_of(**{name: _convert_value(hints.get(name, Any), value) for name, value in args.items()})
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            setting, f"cannot be built ({format_user_error(error)})", f"fix the class, or set its keys in {args_key}"
        ) from error


def _list_keys(found: Callable[..., Any]) -> set[str]:
    if inspect.isclass(found):
        keys_of = getattr(found, "Keys", None)
        return {field.name for field in fields(keys_of)} if is_dataclass(keys_of) else set()
    try:
        parameters = inspect.signature(found).parameters.values()
    except ValueError:  # some C functions have no signature
        return set()
    return {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}


def _member_types(hint: Any) -> list[Any]:
    """The types of a union, or the type, without annotations."""
    if get_origin(hint) is Annotated:
        return _member_types(get_args(hint)[0])
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    return [kind for member in members for kind in _member_types(member)] or [hint]


def _is_known(kind: Any) -> bool:
    return kind is NoneType or kind in ACCEPTED or _is_enum(kind)


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _find_mistake(hint: Any, value: Any) -> tuple[str, str] | None:
    """Rule and remedy of a value that does not fit; None also for types other than numbers, texts and enumerations."""
    kinds = _member_types(hint)
    if not all(map(_is_known, kinds)):
        return None
    if value is None:
        return None if NoneType in kinds else ("must not be null", "set a value, or remove the key")
    enums = [kind for kind in kinds if _is_enum(kind)]
    if enums and len(enums) == len([kind for kind in kinds if kind is not NoneType]):
        choices = [member.value for kind in enums for member in kind]
        return None if value in choices else ("is not known", f"use one of {' '.join(map(str, choices))}")
    if all(kind in ACCEPTED or kind is NoneType for kind in kinds):
        accepted = tuple(part for kind in kinds for part in ACCEPTED.get(kind, ()))
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
            names = " or ".join("null" if kind is NoneType else TYPE_NAMES[kind] for kind in kinds)
            return f"must be {names}", "change the value"
    constraint = constraint_from_hint(hint)
    return None if constraint is None else constraint.violation(value)


def _convert_value(hint: Any, value: Any) -> Any:
    """The value, or the member of an enumeration that it names."""
    for kind in _member_types(hint):
        if _is_enum(kind) and value in [member.value for member in kind]:
            return kind(value)
    return value


def _read_hints(keys_of: Any) -> dict[str, Any]:
    """The types of the keys; empty where they cannot be read, such as names that are imported for type checkers."""
    try:
        return get_type_hints(keys_of, include_extras=True)
    except (NameError, TypeError):
        return {}
