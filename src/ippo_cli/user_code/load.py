"""Load code of users that is named as `path.py:name`, `module:name`, or an entry point of an installed package."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from ippo_cli.config.doors import DOORS, find_entry_points, unknown_name_remedy
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.python_names import missing_name_message
from ippo_cli.config.text_files import ENCODING_REMEDY, find_undecodable_byte
from ippo_cli.user_code.errors import format_user_error
from ippo_cli.user_code.keys import build_keys, check_names

USER_FOLDERS: list[str] = []
"""Folders of user files on `sys.path`, newest first."""


def load_function(name: str, key: str = "reward.function") -> Callable[..., Any]:
    """Return the function or class that a key names; raises `ConfigError` if it does not exist."""
    location, _, attribute = name.rpartition(":")
    setting = f"{key}={name}"
    if not location and name.endswith(".py"):
        raise ConfigError(*missing_name_message(key, name))
    if not location and key in DOORS:
        return _load_entry_point(name, setting, DOORS[key].group)
    if not location:
        raise ConfigError(
            setting,
            "does not name both a file or module and a function",
            "write path/to/file.py:function or module:function",
        )
    if ".py:" in location:
        rule = "names several functions of one file"
        raise ConfigError(setting, rule, f"use one name: {key}={location}")
    module = load_module(location, setting)
    function = getattr(module, attribute, None)
    if not callable(function):
        callables = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(setting, f"names no function in {location}", "it has: " + " ".join(sorted(callables)))
    return function


def load_component(name: str, key: str, args: Mapping[str, Any]) -> Callable[..., Any]:
    """A user's function with keyword arguments, or an instance of a class with its `Keys`.

    `name`: `path.py:name`, `module:name`, or an entry point, for a key of `DOORS`. `args`: values of keyword-only
    parameters of the function, or of the fields of the dataclass `Keys` of the class. Raises `ConfigError`.
    """
    setting = f"{key}={name}"
    found = load_function(name, key)
    build: Any = found
    args_key = f"{key}_args"
    if not inspect.isclass(found):
        check_names(found, setting, args_key, args)
        return partial(found, **args) if args else found
    keys = build_keys(found, setting, args_key, args)
    try:
        return build() if keys is None else build(keys)
    except Exception as error:
        raise ConfigError(
            setting, f"cannot be built ({format_user_error(error)})", f"fix the class, or set its keys in {args_key}"
        ) from error


def check_call(component: Callable[..., Any], setting: str, parameters: Sequence[str]) -> None:
    """Raise `ConfigError` if a component cannot be called with these parameters in order."""
    call = component if inspect.isroutine(component) else getattr(component, "__call__", component)  # noqa: B004
    if inspect.iscoroutinefunction(getattr(call, "func", call)):
        raise ConfigError(setting, "is async, but calls are not awaited", "use a function without async")
    try:
        inspect.signature(component).bind(*[None] * len(parameters))
    except TypeError as error:
        raise ConfigError(
            setting,
            f"cannot be called as function({', '.join(parameters)}) ({error})",
            "let it take these arguments",
        ) from None
    except ValueError:  # some C functions have no signature
        pass


def read_state(component: Any, setting: str) -> dict[str, Any]:
    """The state of a component, as a checkpoint stores it; empty without `state_dict` and `load_state_dict`."""
    methods = [hasattr(component, name) for name in ("state_dict", "load_state_dict")]
    if any(methods) and not all(methods):
        raise ConfigError(setting, "has one of state_dict and load_state_dict", "write both, or neither")
    if not all(methods):
        return {}
    try:
        state = component.state_dict()
        stored = json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            setting, f"has a state that is not JSON ({error})", "return numbers, texts, lists and mappings"
        ) from error
    if not isinstance(stored, dict):
        raise ConfigError(setting, f"returned {type(state).__name__} as state_dict", "return a mapping")
    return stored


def restore_state(component: Any, setting: str, stored: Mapping[str, Any]) -> None:
    """Restore the state of a component that has one. Raises `ConfigError` for an exception."""
    if not hasattr(component, "load_state_dict"):
        return
    try:
        component.load_state_dict(copy.deepcopy(dict(stored)))
    except Exception as error:
        raise ConfigError(setting, f"raised {format_user_error(error)}", "fix its load_state_dict") from error


def try_state(component: Any, setting: str) -> dict[str, Any]:
    """The first state of a component, after it has been restored once."""
    first = read_state(component, setting)
    restore_state(component, setting, first)
    if read_state(component, setting) != first:
        raise ConfigError(
            setting,
            "has another state after load_state_dict(state_dict())",
            "let load_state_dict restore all that state_dict returns",
        )
    return first


def _load_entry_point(name: str, setting: str, group: str) -> Callable[..., Any]:
    """What an installed package registers under this name."""
    if (point := find_entry_points(group).get(name)) is None:
        raise ConfigError(setting, f"is not an entry point of {group}", unknown_name_remedy(group, name))
    try:
        return point.load()
    except Exception as error:
        raise ConfigError(setting, f"cannot be imported ({format_user_error(error)})", "fix the package") from error


def load_module(location: str, setting: str) -> ModuleType:
    """Import `path.py` or `module`; raises `ConfigError` with file and line if this fails."""
    return _load_file(Path(location), setting) if location.endswith(".py") else _load_module(location, setting)


def _load_file(path: Path, setting: str) -> ModuleType:
    if not path.is_file():
        raise ConfigError(
            setting, f"points to {path.resolve()}, which is not a file", "give a path relative to the current folder"
        )
    name = f"ippo_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickle and dataclasses look up the module by name
    add_to_path(path.resolve().parent)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # sys.exit() in a user file must not end the run with success
        if isinstance(error, SyntaxError | UnicodeDecodeError) and (place := find_undecodable_byte(path)):
            raise ConfigError(setting, f"cannot be imported ({place})", ENCODING_REMEDY) from error
        raise ConfigError(
            setting, f"cannot be imported ({format_user_error(error)})", "fix the error in that file"
        ) from error
    return module


def add_to_path(folder: Path) -> None:
    """Let the files of a folder import each other, as files next to a script can.

    Installed packages have priority: a user file named `datasets.py` must not replace the package. A module of the same
    name that was imported from another user folder is imported again from this one.
    """
    others = [place for place in sys.path if place not in USER_FOLDERS]
    foreign = {place for place in USER_FOLDERS if place != str(folder)}
    USER_FOLDERS[:] = [str(folder), *(place for place in USER_FOLDERS if place != str(folder))]
    sys.path[:] = [*others, *USER_FOLDERS]
    importlib.invalidate_caches()
    for name, module in list(sys.modules.items()):
        file, top = getattr(module, "__file__", None), name.partition(".")[0]
        if not file or not foreign or Path(file).is_relative_to(folder):
            continue
        neighbour = (folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file()
        if neighbour and any(Path(file).is_relative_to(place) for place in foreign):
            del sys.modules[name]


def _load_module(name: str, setting: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # importing runs the user's code
        raise ConfigError(
            setting, f"cannot be imported ({format_user_error(error)})", "check the module's name and PYTHONPATH"
        ) from error
