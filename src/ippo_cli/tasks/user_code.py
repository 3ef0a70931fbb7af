"""Python of the user's, named explicitly: `path.py:name` or `module:name`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.own_code import name_missing
from ippo_cli.rewards.located import located


def load_function(name: str, key: str = "reward.function") -> Callable[..., Any]:
    """The function or class that a key names; `ConfigError` where there is none."""
    place, _, attribute = name.rpartition(":")
    setting = f"{key}={name}"
    if not place and name.endswith(".py"):
        raise ConfigError(*name_missing(key, name))
    if not place:
        raise ConfigError(setting, "does not say where and what", "write path/to/file.py:function or module:function")
    module = _load_file(Path(place), setting) if place.endswith(".py") else _load_module(place, setting)
    function = getattr(module, attribute, None)
    if not callable(function):
        callables = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ConfigError(setting, f"names no function in {place}", "it has: " + " ".join(sorted(callables)))
    return function


def _load_file(path: Path, setting: str) -> ModuleType:
    if not path.is_file():
        raise ConfigError(setting, f"points to {path.resolve()}, which is no file", "give a path from this folder")
    name = f"ippo_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that what the file defines can be found by its own name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # a script that ends itself must not end the run as if that were done
        raise ConfigError(setting, f"cannot be imported ({located(error)})", "correct that file") from error
    return module


def _load_module(name: str, setting: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # importing runs the user's code
        raise ConfigError(
            setting, f"cannot be imported ({located(error)})", "check the module's name and PYTHONPATH"
        ) from error
