"""Parsing of user YAML files to nodes with line numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import yaml

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.text_files import ENCODING_REMEDY, find_undecodable_byte

QUOTE_HINT = 'put text with {braces}, a colon or a # in quotes: template: "{question}"'


@dataclass(frozen=True, slots=True)
class YamlSource:
    """A user file: its path, the group that it is an option of, and its text."""

    path: Path
    group: str
    text: str

    def raise_error(self, node: yaml.Node | int, key: str, rule: str, remedy: str) -> NoReturn:
        line = node if isinstance(node, int) else node.start_mark.line + 1
        raise ConfigError(f"{shorten_path(self.path)}, line {line}: {key}", rule, remedy)


def shorten_path(path: Path) -> str:
    """Make a path relative to the working directory if it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def read_source_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        place = find_undecodable_byte(path) or str(error)
        raise ConfigError(shorten_path(path), f"cannot be read ({place})", ENCODING_REMEDY) from error
    except OSError as error:
        raise ConfigError(shorten_path(path), f"cannot be read ({error})", "it must be a text file in UTF-8") from error


def parse_tree(source: YamlSource) -> yaml.MappingNode:
    """Parse a file to nodes with line numbers; raises `ConfigError` for invalid YAML and duplicate keys."""
    try:
        root = yaml.compose(source.text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        is_unclosed = "'<stream end>'" in str(error.problem) and error.context_mark is not None
        mark = error.context_mark if is_unclosed else error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        line_text = "".join(source.text.splitlines()[line - 1 : line]).strip() or "its end"
        if "'\\t'" in str(error.problem):
            source.raise_error(line, line_text, "begins with a tab", "indent with spaces")
        problem = str(error.problem).replace("but got '<stream end>'", "but the file ends")
        source.raise_error(
            line, line_text, f"is invalid YAML ({problem})", f"close every bracket and quote; {QUOTE_HINT}"
        )
    except yaml.YAMLError as error:
        source.raise_error(1, "", f"is invalid YAML ({str(error).splitlines()[0]})", "write plain text in UTF-8")
    if root is None:  # empty, or comments only
        raise ConfigError(shorten_path(source.path), "is empty", "create a file with ippo-train --new-task FILE")
    if not isinstance(root, yaml.MappingNode):
        source.raise_error(root, node_text(source, root), "is not a mapping", "write 'key: value' lines")
    _check_duplicates(source, root)
    return root


def _check_duplicates(source: YamlSource, node: yaml.Node) -> None:
    if isinstance(node, yaml.SequenceNode):
        for part in node.value:
            _check_duplicates(source, part)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            source.raise_error(key, node_text(source, key), "is not a key", QUOTE_HINT)
        if key.value in lines:
            source.raise_error(key, key.value, f"occurs twice; first in line {lines[key.value]}", "keep one of them")
        lines[key.value] = key.start_mark.line + 1
        _check_duplicates(source, value)


def mapping_items(node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node]]:
    yield from ((key.value, value) for key, value in node.value if key.value != "<<")


def keys_with_lines(node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node, int]]:
    """Yield keys and values, with the line of the key."""
    yield from ((key.value, value, key.start_mark.line + 1) for key, value in node.value if key.value != "<<")


def node_text(source: YamlSource, node: yaml.Node) -> str:
    """The source text of a node on one line, truncated."""
    return " ".join(source.text[node.start_mark.index : node.end_mark.index].split())[:60]
