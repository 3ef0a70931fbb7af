"""Checks of keys and values in user YAML files against the schema."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

import yaml

from ippo_cli.compose.load import KINDS, SINGLE_SCHEMAS
from ippo_cli.compose.path_keys import load_yaml
from ippo_cli.compose.validate import describe_type, is_value_of
from ippo_cli.compose.yaml_source import YamlSource, keys_with_lines, mapping_items, node_text
from ippo_cli.config import schema
from ippo_cli.config.text import closest_hint


def check_global_file(source: YamlSource, body: Iterable[tuple[str, yaml.Node, int]]) -> None:
    """Check a file that sets values of several groups with unknown options."""
    groups = {
        **{group: (cls,) for group, cls in SINGLE_SCHEMAS.items()},
        **{g: tuple(k.values()) for g, k in KINDS.items()},
    }
    top = {leaf.name for leaf in fields(schema.RunConfig)}
    for key, node, line in body:
        if key in groups and isinstance(node, yaml.MappingNode):
            check_mapping(source, keys_with_lines(node), groups[key], f"{key}.", f"{key}=")
        elif key in top:
            check_mapping(source, [(key, node, line)], (schema.RunConfig,), "", "a run")
        elif key != "hydra":
            _raise_unknown_key(source, line, key, key, [*top, *groups], "a run")


def check_mapping(
    source: YamlSource,
    body: Iterable[tuple[str, yaml.Node, int]],
    classes: Sequence[type[Any]],
    prefix: str,
    owner: str,
) -> None:
    """Check that every key is a field of one of the classes, with a value of its type."""
    hints = {name: hint for cls in reversed(classes) for name, hint in get_type_hints(cls).items()}
    for key, node, line in body:
        full = prefix + key
        if key not in hints:
            _raise_unknown_key(source, line, key, full, list(hints), owner)
        hint = hints[key]
        if get_origin(hint) is dict and not is_dataclass(get_args(hint)[1]):  # user-defined keys
            continue
        if get_origin(hint) is dict:  # agents by name
            _check_agents(source, node, line, full)
        elif is_dataclass(hint):
            if not isinstance(node, yaml.MappingNode):
                if "${" in node_text(source, node):
                    continue
                source.raise_error(
                    line,
                    full,
                    f"is {_describe_node(source, node)}, and must be a mapping",
                    "it has: " + " ".join(leaf.name for leaf in fields(hint)),
                )
            assert isinstance(hint, type)
            check_mapping(source, keys_with_lines(node), (hint,), f"{full}.", full)
        else:
            _check_leaf(source, node, line, key, full, hint, classes)


def _check_agents(source: YamlSource, node: yaml.Node, line: int, full: str) -> None:
    """Check that the node is a mapping of agents with templates."""
    if not isinstance(node, yaml.MappingNode):
        source.raise_error(
            line,
            full,
            f"is {_describe_node(source, node)}, and must be named agents",
            'add one line per agent, such as: solver: {template: "{question}"}',
        )
    for agent, value, at in keys_with_lines(node):
        if not isinstance(value, yaml.MappingNode):
            source.raise_error(
                at,
                f"{full}.{agent}",
                f"is {_describe_node(source, value)}, and must be an agent",
                f'write: {agent}: {{template: "{{question}}"}}',
            )
        check_mapping(source, keys_with_lines(value), (schema.AgentConfig,), f"{full}.{agent}.", "an agent")
        if "template" not in dict(mapping_items(value)) and not (source.text.count("<<") or _is_program(source)):
            _require_template(source, at, f"{full}.{agent}")


def _is_program(source: YamlSource) -> bool:
    """Whether a file defines a `task=program`: its agents have no templates."""
    return re.search(r"(/schema/task_|/base/|/task/|^\s*- )program\b", source.text, re.MULTILINE) is not None


def _require_template(source: YamlSource, line: int, where: str) -> None:
    source.raise_error(line, f"{where}.template", "is missing", 'give the prompt: template: "{question}"')


def _check_leaf(
    source: YamlSource, node: yaml.Node, line: int, key: str, full: str, hint: Any, classes: Sequence[type[Any]]
) -> None:
    written = node_text(source, node)
    if hint is Any or (isinstance(node, yaml.ScalarNode) and "${" in written):
        return  # interpolations are resolved after composition
    try:
        value = load_yaml(_single_key_document(node, key))[key]
    except yaml.YAMLError:  # for example an anchor defined elsewhere; composition reports such errors
        return
    kinds = _kinds_of_group(classes) if key == "kind" else ()
    if (not kinds or value in kinds) and any(is_value_of(get_type_hints(cls).get(key), value) for cls in classes):
        return
    if isinstance(node, yaml.MappingNode) and node.flow_style:
        source.raise_error(
            line,
            f"{full}: {written}",
            f"is a mapping, and must be {describe_type(hint)}",
            f'put quotes around it: {key}: "{written}"',
        )
    allowed = "one of " + " ".join(kinds) if kinds else describe_type(hint)
    source.raise_error(line, full, f"is {_describe_node(source, node)}", f"it must be {allowed}")


def _kinds_of_group(classes: Sequence[type[Any]]) -> Sequence[str]:
    """The kinds of the group that one of the classes belongs to."""
    return next((list(kinds) for kinds in schema.OPTIONS.values() if any(cls in classes for cls in kinds.values())), ())


def _single_key_document(node: yaml.Node, key: str) -> str:
    """Serialise a YAML document with only this key and value."""
    return yaml.serialize(
        yaml.MappingNode("tag:yaml.org,2002:map", [(yaml.ScalarNode("tag:yaml.org,2002:str", key), node)])
    )


def _describe_node(source: YamlSource, node: yaml.Node) -> str:
    """Describe a YAML node in words."""
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    return "empty" if not node_text(source, node) else repr(node_text(source, node))


def _raise_unknown_key(
    source: YamlSource, line: int, key: str, full: str, known: Sequence[str], owner: str
) -> NoReturn:
    remedy = "it has: " + " ".join(known)
    source.raise_error(line, full, f"is not a key of {owner}{closest_hint(key, known)}", remedy)
