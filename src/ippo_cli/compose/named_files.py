"""All mistakes in names of files, folders and functions at once, without running user code or reading data."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from ippo_cli.compose.hub_names import is_path_like, path_names
from ippo_cli.config.checks import constrained_leaves
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.python_names import is_code_reference, public_definitions
from ippo_cli.config.schema import Config
from ippo_cli.config.text import closest_hint
from ippo_cli.config.tools import tool_entries

DYNAMIC = re.compile(r"\b(globals|setattr|exec|vars)\(|import \*|__getattr__")
"""Code that may define names that are not written in a file."""


def check_named_files(
    config: Config, *, models: bool = True, training: bool = True, data: bool = True, typed: Collection[str] = ()
) -> Iterator[ConfigError]:
    """Yield one error for every data file, model folder, user file and function that does not exist, and for every
    chat template that is not valid.

    `models=False`: weights and chat templates are those of a run's checkpoint. `training=False`: an evaluation, which
    calls functions of the task and the reward only. `data=False`: a command without data, which calls only functions
    of keys in `typed`.
    """
    if models:
        yield from chat_template_errors(config)
    for setting, name in path_names(config, models=models, training=training, data=data):
        if is_path_like(name) and not Path(name).exists():
            yield ConfigError(f"{setting}={name}", "names no file or folder", "correct the path")
    for name, agent in config.task.agents.items() if training or data else ():
        for entry in tool_entries(getattr(agent, "tools", None)):
            if isinstance(entry, str) and entry.endswith(".py"):
                yield from _check_file(f"task.agents.{name}.tools={entry}", Path(entry))
    known: set[tuple[str, str]] = set()
    # Agents last: a value that all agents inherit from a group is reported once, under the group's key.
    for key, value, _ in sorted(constrained_leaves(config), key=lambda leaf: leaf[0].startswith("task.agents.")):
        group_key = key.split(".", 3)[-1] if key.startswith("task.agents.") else key
        if key not in typed and not (training or (data and _is_of_evaluation(key, config))):
            continue
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and is_code_reference(text) and (group_key, text) not in known:
                known.add((group_key, text))
                yield from _check_function(key, text)


def _is_of_evaluation(key: str, config: Config) -> bool:
    """Whether an evaluation calls the function of a key."""
    has_training_rows = getattr(config.task, "eval_share", None) is not None
    return key.startswith(("task.", "reward.")) and (key != "task.train" or has_training_rows)


def chat_template_errors(config: Config) -> Iterator[ConfigError]:
    """Yield one error for every file of `actor.chat_template` that is missing or not valid Jinja."""
    keys: dict[str, str] = {}
    for name, agent in config.task.agents.items():
        if (file := agent.actor.chat_template) is not None:
            is_inherited = file == getattr(config.actor, "chat_template", None)
            keys.setdefault(file, f"{'' if is_inherited else f'task.agents.{name}.'}actor.chat_template")
    if not keys:
        return
    from ippo_cli.user_code.templates import read_chat_template

    for file, key in keys.items():
        try:
            read_chat_template(file, key)
        except ConfigError as error:
            yield error


def _check_function(key: str, text: str) -> Iterator[ConfigError]:
    """Check `path.py:name`; modules are checked when they are imported."""
    location, _, name = text.rpartition(":")
    file = Path(location)
    if file.suffix != ".py" or any(character in location for character in "\n{}"):
        return
    if missing := list(_check_file(f"{key}={text}", file)):
        yield from missing
        return
    names = _assigned_names(file)
    if names is not None and name not in names:
        public = public_definitions(file)
        rule = f"names no function in {location}{closest_hint(name, public)}"
        yield ConfigError(f"{key}={text}", rule, "it has: " + " ".join(public) if public else "write the function")


def _check_file(setting: str, file: Path) -> Iterator[ConfigError]:
    if not file.is_file():
        rule = f"points to {file.absolute()}, which is not a file"
        yield ConfigError(setting, rule, "give a path relative to the current folder")


def _assigned_names(file: Path) -> set[str] | None:
    """Names that a file defines, assigns or imports anywhere; None if only running it can tell, or if it is invalid."""
    try:
        text = file.read_text(encoding="utf-8")
        nodes = list(ast.walk(ast.parse(text)))
    except (OSError, ValueError, SyntaxError):
        return None
    if DYNAMIC.search(text):
        return None
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(part.asname or part.name).partition(".")[0] for part in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names
