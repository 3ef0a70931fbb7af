"""Checks of user YAML files against their schema; errors name file, line and key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, NoReturn, get_args, get_origin, get_type_hints

import yaml

from ippo_cli.compose.load import KINDS, SINGLE_SCHEMAS, config_dir
from ippo_cli.compose.path_keys import is_global_option, load_yaml
from ippo_cli.compose.searchpath import list_options, user_option_files
from ippo_cli.compose.validate import describe_type, is_value_of
from ippo_cli.compose.yaml_source import (
    YamlSource,
    keys_with_lines,
    mapping_items,
    node_text,
    parse_tree,
    read_source_text,
    shorten_path,
)
from ippo_cli.config import schema
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.text import closest_hint

SELF, HERE = "_self_", "@_here_"
Options = Mapping[tuple[str, str], Path]


def check_user_files(overrides: Sequence[str]) -> None:
    """Raise `ConfigError` for the first mistake in a user file that the overrides choose."""
    own = {(group, file.stem): file for group, file in user_option_files(overrides)}
    if not own:
        return
    builtin = {(group, file.stem): file for group, file in list_options(config_dir())}
    for name in chosen_options(overrides):
        if name in own:
            if name in builtin:
                raise ConfigError(
                    shorten_path(own[name]),
                    f"has the name of the built-in {'='.join(name)}, which would be used instead",
                    "rename the file",
                )
            _check_file(name, own, builtin | own, None, ())


def chosen_options(overrides: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield group and option of every override that may choose an option; all values of a sweep."""
    for text in overrides:
        key, equals, value = text.lstrip("+").partition("=")
        if equals and re.fullmatch(r"[\w/]+", key):
            yield from ((key, part.strip().strip("'\"")) for part in value.split(","))


def find_key_location(key: str, overrides: Sequence[str]) -> str | None:
    """File and line where a user file sets a dotted key; None if none sets it or the key is typed."""
    if any(text.lstrip("+").startswith(f"{key}=") for text in overrides):
        return None
    own = {(group, file.stem): file for group, file in user_option_files(overrides)}
    group, _, inside = key.partition(".")
    for name in chosen_options(overrides):
        if name not in own:
            continue
        node: yaml.Node | None = yaml.compose(read_source_text(own[name]), Loader=yaml.SafeLoader)
        line = None
        for part in (inside if name[0] == group else key).split("."):
            if not isinstance(node, yaml.MappingNode):
                node, line = None, None
                break
            line = next((at for at_key, _, at in keys_with_lines(node) if at_key == part), None)
            node = dict(mapping_items(node)).get(part)
        if line is not None:
            return f"{shorten_path(own[name])}, line {line}"
    return None


def _check_file(
    name: tuple[str, str], own: Options, options: Options, parent: type[Any] | None, seen: Sequence[tuple[str, str]]
) -> None:
    """Check one file, after the user files in its defaults list."""
    group, _ = name
    source = YamlSource(own[name], group, read_source_text(own[name]))
    root = parse_tree(source)
    named = dict(mapping_items(root))
    is_global = is_global_option(source.text)
    listed = _defaults(source, named.get("defaults"), options)
    kind = _option_schema(name, group, options) or parent
    for below in listed:
        if below in own and below not in (*seen, name):
            _check_file(below, own, options, kind if below[0] == group else None, (*seen, name))
    body = [(key, value, line) for key, value, line in keys_with_lines(root) if key != "defaults"]
    if is_global:
        check_global_file(source, body)
    elif kind is not None:
        check_mapping(source, body, (kind,), "", f"{group}=")
        _check_has_agents(source, root, kind, named)
    elif group in schema.OPTIONS:
        rule, kinds = "is missing, so that keys cannot be checked", " ".join(schema.OPTIONS[group])
        source.raise_error(1, "kind", rule, f"add the line 'kind: NAME', with one of {kinds}")


def _defaults(source: YamlSource, node: yaml.Node | None, options: Options) -> list[tuple[str, str]]:
    """Group and option of every entry of a defaults list; raises `ConfigError` for an unknown option."""
    if node is None:
        return []
    if not isinstance(node, yaml.SequenceNode):
        source.raise_error(node, "defaults", "is not a list", f"write one entry per line, such as '  - {SELF}'")
    names: list[tuple[str, str]] = []
    for part in node.value:
        name = _default_option(source, part)
        if name is None:
            continue
        group, option = name
        known = list(schema.SCHEMAS) if group == "schema" else [o for g, o in options if g == group]
        if option not in known and "${" not in option:
            groups = sorted({g for g, _ in options} | {"schema"})
            remedy = f"use one of {' '.join(known)}" if known else f"use one of the groups {' '.join(groups)}"
            source.raise_error(
                part, node_text(source, part), f"names no existing option{closest_hint(option, known)}", remedy
            )
        names.append(name)
    return names


def _default_option(source: YamlSource, node: yaml.Node) -> tuple[str, str] | None:
    """Group and option of an entry of a defaults list; None for `_self_`, null and optional entries."""
    if isinstance(node, yaml.MappingNode) and len(node.value) == 1:
        (key, value) = node.value[0]
        if not isinstance(value, yaml.ScalarNode) or value.value in ("null", "~", ""):
            return None
        words = key.value.split()
        if "optional" in words:
            return None
        group = words[-1].partition("@")[0]
        return _absolute_group(source, group), value.value.removesuffix(".yaml")
    if not isinstance(node, yaml.ScalarNode) or node.value == SELF:
        return None
    group, _, option = node.value.partition("@")[0].rpartition("/")
    return (_absolute_group(source, group) if group else source.group), option.removesuffix(".yaml")


def _absolute_group(source: YamlSource, group: str) -> str:
    """Resolve a group relative to the file's group; `/base` is absolute."""
    if group.startswith("/") or not source.group:
        return group.strip("/")
    return f"{source.group}/{group}"


def _option_schema(
    name: tuple[str, str], group: str, options: Options, seen: Sequence[tuple[str, str]] = ()
) -> type[Any] | None:
    """The schema of a file for `group`: by its own `kind`, else by that of the files that it starts from."""
    kinds = schema.OPTIONS.get(group, {})
    if schema.SINGLE in kinds:
        return kinds[schema.SINGLE]
    if name[0] == "schema":
        return schema.SCHEMAS.get(name[1])
    if name not in options or name in seen:
        return None
    source = YamlSource(options[name], name[0], read_source_text(options[name]))
    named = dict(mapping_items(parse_tree(source)))
    own = dict(mapping_items(below)) if isinstance(below := named.get(group), yaml.MappingNode) else named
    if isinstance(kind := own.get("kind"), yaml.ScalarNode) and kind.value in kinds:
        return kinds[kind.value]
    listed = named.get("defaults")
    for part in listed.value if isinstance(listed, yaml.SequenceNode) else ():
        entry = _default_option(source, part)
        if entry is not None and entry[0] in ("schema", "base", group):
            cls = _option_schema(entry, group, options, (*seen, name))
            if cls is not None:
                return cls
    return None


def _check_has_agents(source: YamlSource, root: yaml.Node, kind: type[Any], named: Mapping[str, yaml.Node]) -> None:
    """Raise `ConfigError` for a task file without agents, unless it starts from another task."""
    if not issubclass(kind, schema.TaskConfig) or "agents" in named:
        agents = named.get("agents")
        if isinstance(agents, yaml.MappingNode) and not agents.value:
            source.raise_error(agents, "agents", "is empty", 'add an agent: solver: {template: "{question}"}')
        return
    listed = named.get("defaults")
    entries = [
        _default_option(source, part) for part in (listed.value if isinstance(listed, yaml.SequenceNode) else ())
    ]
    if all(entry is None or entry[0] in ("schema", "base") for entry in entries):
        source.raise_error(
            root, "agents", "are missing", 'add agents, such as: agents: {solver: {template: "{question}"}}'
        )


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
