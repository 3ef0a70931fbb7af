"""References to functions and classes in user files, parsed without running the files."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from ippo_cli.config.commands import expand_home

MAX_SUGGESTIONS = 8
_OF_FILE = re.compile(r"[^\n{}]+\.py:[A-Za-z_]\w*")
_CODE = re.compile(r"(.+\.py|[A-Za-z_][\w.]*):[A-Za-z_]\w*")


def is_code_reference(value: str) -> bool:
    """Whether a value is `path.py:name` or `module:name`; data files and hub names never match."""
    return _CODE.fullmatch(value) is not None


def is_function_path(value: str) -> bool:
    """Whether a template is exactly `path.py:name`, and so means a function.

    A path with a space must exist: `Fix main.py:run` is a prompt.
    """
    if _OF_FILE.fullmatch(value) is None:
        return False
    return not re.search(r"\s", value) or expand_home(value.rpartition(":")[0]).is_file()


def public_definitions(file: Path) -> list[str]:
    """Public functions and classes of a file, in order; empty if it cannot be parsed."""
    try:
        nodes = ast.parse(file.read_text(encoding="utf-8")).body
    except (OSError, ValueError, SyntaxError):
        return []
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node.name for node in nodes if isinstance(node, kinds) and not node.name.startswith("_")]


def missing_name_message(key: str, value: str) -> tuple[str, str, str]:
    """Setting, rule and remedy for a value that names a file without a function or class."""
    candidates = public_definitions(Path(value))[:MAX_SUGGESTIONS]
    remedy = (
        " or ".join(f"{key}={value}:{name}" for name in candidates[:2]) if candidates else f"write {key}={value}:NAME"
    )
    return (
        f"{key}={value}",
        "names a file without a function or class",
        f"use {remedy}{'; it has: ' + ' '.join(candidates) if len(candidates) > 2 else ''}" if candidates else remedy,
    )
