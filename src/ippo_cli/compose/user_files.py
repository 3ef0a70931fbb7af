"""YAML files of one's own, read against their schema: file, line and key of what cannot be meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ippo_cli.compose.file_values import check_global, check_mapping
from ippo_cli.compose.load import KINDS, PLAIN, config_dir
from ippo_cli.compose.searchpath import options_below, own_files
from ippo_cli.compose.yaml_source import Source, items, lines_of, shortest, spelled, text_of, tree_of
from ippo_cli.config import schema
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.text import closest

SELF, HERE = "_self_", "@_here_"
Options = Mapping[tuple[str, str], Path]


def check_own_files(overrides: Sequence[str]) -> None:
    """Raise `ConfigError` for the first mistake in a file of the user's that the overrides choose."""
    own = {(group, file.stem): file for group, file in own_files(overrides)}
    if not own:
        return
    builtin = {(group, file.stem): file for group, file in options_below(config_dir())}
    for name in chosen(overrides):
        if name in own:
            if name in builtin:
                raise ConfigError(
                    shortest(own[name]),
                    f"has the name of {'='.join(name)}, which would be used instead",
                    "give the file a name of its own",
                )
            _check_file(name, own, builtin | own, None, ())


def chosen(overrides: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Group and option of everything that may be a choice; of a sweep, all of its values."""
    for text in overrides:
        key, equals, value = text.lstrip("+").partition("=")
        if equals and re.fullmatch(r"[\w/]+", key):
            yield from ((key, part.strip().strip("'\"")) for part in value.split(","))


def written_at(key: str, overrides: Sequence[str]) -> str | None:
    """File and line where the user's files give a key, dotted as in errors; None where none of them does."""
    if any(text.lstrip("+").startswith(f"{key}=") for text in overrides):
        return None
    own = {(group, file.stem): file for group, file in own_files(overrides)}
    group, _, inside = key.partition(".")
    for name in chosen(overrides):
        if name not in own:
            continue
        node: yaml.Node | None = yaml.compose(text_of(own[name]), Loader=yaml.SafeLoader)
        line = None
        for part in (inside if name[0] == group else key).split("."):
            if not isinstance(node, yaml.MappingNode):
                node, line = None, None
                break
            line = next((at for at_key, _, at in lines_of(node) if at_key == part), None)
            node = dict(items(node)).get(part)
        if line is not None:
            return f"{shortest(own[name])}, line {line}"
    return None


def _check_file(
    name: tuple[str, str], own: Options, options: Options, parent: type[Any] | None, seen: Sequence[tuple[str, str]]
) -> None:
    """Check one file and, before it, the user's own files that it starts from."""
    group, _ = name
    source = Source(own[name], group, text_of(own[name]))
    root = tree_of(source)
    named = dict(items(root))
    is_global = re.search(r"^#\s*@package\s+_global_", source.text, re.MULTILINE) is not None
    listed = _defaults(source, named.get("defaults"), options)
    kind = _class_of(name, options) or parent
    for below in listed:
        if below in own and below not in (*seen, name):
            _check_file(below, own, options, kind if below[0] == group else None, (*seen, name))
    body = [(key, value, line) for key, value, line in lines_of(root) if key != "defaults"]
    if is_global:
        check_global(source, body)
    elif kind is not None:
        check_mapping(source, body, (kind,), "", f"{group}=")
        _check_agents_named(source, root, kind, named)
    elif group in KINDS or group in PLAIN or group == "sweep":
        names = [schema_name for schema_name in schema.SCHEMAS if schema_name.split("_")[0] == group]
        first = f"  - /schema/{'NAME' if len(names) > 1 else names[0]}{HERE}"
        source.refuse(
            1,
            "defaults",
            f"name no schema, so that no key of {group}= could be checked",
            f"begin the file with a line 'defaults:' and below it '{first}' and '  - {SELF}'"
            + (f"; NAME is one of {' '.join(names)}" if len(names) > 1 else ""),
        )


def _defaults(source: Source, node: yaml.Node | None, options: Options) -> list[tuple[str, str]]:
    """Group and option of everything that the file starts from, each known to be there."""
    if node is None:
        return []
    if not isinstance(node, yaml.SequenceNode):
        source.refuse(node, "defaults", "is no list", f"write one entry per line, such as '  - {SELF}'")
    names: list[tuple[str, str]] = []
    for part in node.value:
        name = _entry(source, part)
        if name is None:
            continue
        group, option = name
        known = list(schema.SCHEMAS) if group == "schema" else [o for g, o in options if g == group]
        if option not in known and "${" not in option:
            groups = sorted({g for g, _ in options} | {"schema"})
            remedy = f"there are {' '.join(known)}" if known else f"there are the groups {' '.join(groups)}"
            source.refuse(part, spelled(source, part), f"names nothing that is there{closest(option, known)}", remedy)
        names.append(name)
    return names


def _entry(source: Source, node: yaml.Node) -> tuple[str, str] | None:
    """Group and option of an entry of a defaults list; None for what chooses nothing."""
    if isinstance(node, yaml.MappingNode) and len(node.value) == 1:
        (key, value) = node.value[0]
        if not isinstance(value, yaml.ScalarNode) or value.value in ("null", "~", ""):
            return None
        words = key.value.split()
        if "optional" in words:
            return None
        group = words[-1].partition("@")[0]
        return _absolute(source, group), value.value.removesuffix(".yaml")
    if not isinstance(node, yaml.ScalarNode) or node.value == SELF:
        return None
    group, _, option = node.value.partition("@")[0].rpartition("/")
    return (_absolute(source, group) if group else source.group), option.removesuffix(".yaml")


def _absolute(source: Source, group: str) -> str:
    """A group as seen from the file's own: `/base` is at the top, and so is every group from `experiment/`."""
    if group.startswith("/") or not source.group:
        return group.strip("/")
    return f"{source.group}/{group}"


def _class_of(name: tuple[str, str], options: Options, seen: Sequence[tuple[str, str]] = ()) -> type[Any] | None:
    """The schema that an option names, itself or through what it starts from."""
    group, option = name
    if group == "schema":
        return schema.SCHEMAS.get(option)
    if name not in options or name in seen:
        return None
    source = Source(options[name], group, text_of(options[name]))
    root = yaml.compose(source.text, Loader=yaml.SafeLoader)
    listed = dict(items(root)).get("defaults") if isinstance(root, yaml.MappingNode) else None
    for part in listed.value if isinstance(listed, yaml.SequenceNode) else ():
        below = _entry(source, part)
        if below is not None and below[0] in ("schema", "base", group):
            cls = _class_of(below, options, (*seen, name))
            if cls is not None:
                return cls
    return None


def _check_agents_named(source: Source, root: yaml.Node, kind: type[Any], named: Mapping[str, yaml.Node]) -> None:
    """A task file names its agents, unless it starts from another one that does."""
    if not issubclass(kind, schema.TaskConfig) or "agents" in named:
        agents = named.get("agents")
        if isinstance(agents, yaml.MappingNode) and not agents.value:
            source.refuse(agents, "agents", "names nobody", 'name one: solver: {template: "{question}"}')
        return
    listed = named.get("defaults")
    entries = [_entry(source, part) for part in (listed.value if isinstance(listed, yaml.SequenceNode) else ())]
    if all(entry is None or entry[0] in ("schema", "base") for entry in entries):
        source.refuse(root, "agents", "are missing", 'add, for one: agents: {solver: {template: "{question}"}}')
