"""Load user functions that are named as `path.py:name` or `module:name`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.python_names import missing_name_message
from ippo_cli.config.text_files import ENCODING_REMEDY, find_undecodable_byte
from ippo_cli.user_code.errors import format_user_error

USER_FOLDERS: list[str] = []
"""Folders of user files on `sys.path`, newest first."""


def load_function(name: str, key: str = "reward.function") -> Callable[..., Any]:
    """Return the function or class that a key names; raises `ConfigError` if it does not exist."""
    location, _, attribute = name.rpartition(":")
    setting = f"{key}={name}"
    if not location and name.endswith(".py"):
        raise ConfigError(*missing_name_message(key, name))
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
