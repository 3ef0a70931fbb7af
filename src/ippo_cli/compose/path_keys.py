"""Keys with paths and keys with text: makes paths absolute and escapes `${` before composition."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml

from ippo_cli.config.commands import expand_home
from ippo_cli.config.python_names import is_code_reference, is_function_path
from ippo_cli.config.schema import ReferenceKind, RunConfig

AGENTS_KEY = "task.agents"
CODE_KEYS = (
    ".function",
    "task.protocol",
    "task.environment",
    "task.program",
    "tracker.callback",
    "rollout.engine",
    "_function",
)  # path.py:name
PATH_PATTERN = re.compile(
    r"\+{0,2}(algorithm\.(advantage|objective)|task\.(train|eval)|reward\.(parts\.\w+\.)?(function|processor)|task\.(protocol|environment|program)"
    r"|task\.(filter|map)|task\.agents\.\w+\.(template|turn_template|answer|warm_start_answer|tools)|tracker\.callback|rollout\.engine"
    r"|(task\.agents\.\w+\.)?(actor\.(model|adapter|reference|tokenizer|chat_template)|critic\.(model|warm_start)))"
)
MAYBE_CODE_KEYS = re.compile(
    r".*\.(filter|map|template|turn_template|answer|warm_start_answer|processor|objective|advantage)"
)  # or text
TEXT_KEYS = re.compile(
    r"\+{0,2}(task\.agents\.\w+\.(template|turn_template|answer|warm_start_answer|system)"
    r"|reward\.(parts\.\w+\.)?template|task\.filter)"
)
_DOLLAR = re.compile(r"(\\*)\$\{(?!\w+(?:\.\w+)+\}|\w[\w.]*:)(?:(\w+)\})?")


def is_path_value(key: str, value: str) -> bool:
    """Whether a value may be a path; for keys that may also be text, only `path.py:name` is."""
    if key.endswith("actor.reference") and value in [kind.value for kind in ReferenceKind]:
        return False
    return PATH_PATTERN.fullmatch(key) is not None and (not MAYBE_CODE_KEYS.fullmatch(key) or is_function_path(value))


def make_absolute(key: str, value: Any, base: Path | None = None) -> Any:
    """Make existing paths in a value absolute; relative paths start from `base` or the working directory."""
    if isinstance(value, list) and PATH_PATTERN.fullmatch(key):
        return [make_absolute(key, part, base) for part in value]
    if not isinstance(value, str) or not is_path_value(key, value):
        return value
    is_code = key.endswith(CODE_KEYS) or MAYBE_CODE_KEYS.fullmatch(key)
    place, colon, name = value.rpartition(":") if is_code else (value, "", "")
    if colon and not place.endswith(".py"):
        return value  # module:name, even if a folder has the module's name
    return f"{absolute_path(place, base)}{colon}{name}"


def absolute_path(place: str, base: Path | None = None) -> str:
    """Make a path, a pattern or `path.py:name` absolute if it exists; otherwise return it unchanged."""
    from ippo_cli.config.data import expand_pattern, is_pattern

    if not place:
        return place
    if is_code_reference(place):
        file, _, name = place.rpartition(":")
        return f"{absolute_path(file, base)}:{name}" if file.endswith(".py") else place
    try:
        path = expand_home(place)  # shells do not expand `~` after `=`
        path = path if base is None else base / path
        exists = path.exists() or (is_pattern(str(path)) and bool(expand_pattern(str(path))))
        return str(path.absolute()) if exists else place
    except (RuntimeError, OSError, ValueError):  # no such user; a name too long or odd for a file
        return place


def escape_interpolations(text: str) -> str:
    """Escape `${` in a text, except in `${group.key}`, `${resolver:...}` and top-level keys such as `${seed}`.

    `${name}` is escaped too: it is more likely a field of a row than the run's name.
    """
    if "${" not in text:
        return text
    keys = {leaf.name for leaf in fields(RunConfig)} - {"name"}

    def escape(found: re.Match[str]) -> str:
        if len(found[1]) % 2 or found[2] in keys:
            return found[0]
        return f"{found[1] * 2}\\{found[0][len(found[1]) :]}"

    return _DOLLAR.sub(escape, text)


def read_option(text: str, group: str, folder: Path) -> Any:
    """Read a user's YAML file of a group; paths are relative to its folder, and text may contain `${`."""
    return _resolve_option_value(load_yaml(text), "" if is_global_option(text) else group.replace("/", "."), folder)


def is_global_option(text: str) -> bool:
    """Whether the keys of a YAML file start at the top instead of below the file's group."""
    return re.search(r"^#\s*@package\s+_global_", text, re.MULTILINE) is not None


def load_yaml(text: str) -> Any:
    """Parse YAML with OmegaConf's types, without interpolation."""
    from omegaconf._utils import get_yaml_loader

    return yaml.load(text, Loader=get_yaml_loader())


def dump_yaml(plain: Any) -> str:
    """Format values as YAML like `OmegaConf.to_yaml`, but for any text, such as `${{x}}`."""
    from omegaconf._utils import get_omega_conf_dumper

    return yaml.dump(
        plain, default_flow_style=False, allow_unicode=True, sort_keys=False, Dumper=get_omega_conf_dumper()
    )


def _resolve_option_value(value: Any, key: str, folder: Path) -> Any:
    if isinstance(value, dict):
        return {
            name: _resolve_option_value(part, f"{key}.{name}" if key else str(name), folder)
            for name, part in value.items()
        }
    value = make_absolute(key, value, folder)
    return escape_interpolations(value) if isinstance(value, str) and TEXT_KEYS.fullmatch(key) else value
