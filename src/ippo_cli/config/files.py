"""YAML files of one's own, read against their schema: file, line and key of what cannot be meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, cast, get_args, get_origin, get_type_hints

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ippo_cli.config import schema
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.load import KINDS, PLAIN, config_dir
from ippo_cli.config.searchpath import options_below, own_files

SELF, HERE = "_self_", "@_here_"
QUOTES = 'text with {braces}, a colon or a # stands in quotes: template: "{question}"'
KIND_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "text", NoneType: "null"}
Options = Mapping[tuple[str, str], Path]


@dataclass(frozen=True, slots=True)
class Source:
    """A file of the user's: where it lies, which group it is an option of, and its text."""

    path: Path
    group: str
    text: str

    def refuse(self, node: yaml.Node | int, key: str, rule: str, remedy: str) -> NoReturn:
        line = node if isinstance(node, int) else node.start_mark.line + 1
        raise ConfigError(f"{shortest(self.path)}, line {line}: {key}", rule, remedy)


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
        key, found, value = text.lstrip("+").partition("=")
        if found and re.fullmatch(r"[\w/]+", key):
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
        node: yaml.Node | None = yaml.compose(_text(own[name]), Loader=yaml.SafeLoader)
        line = None
        for part in (inside if name[0] == group else key).split("."):
            if not isinstance(node, yaml.MappingNode):
                node, line = None, None
                break
            line = next((at for at_key, _, at in _lines(node) if at_key == part), None)
            node = dict(_items(node)).get(part)
        if line is not None:
            return f"{shortest(own[name])}, line {line}"
    return None


def shortest(path: Path) -> str:
    """A path relative to where one stands, if it lies below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _check_file(
    name: tuple[str, str], own: Options, options: Options, parent: type[Any] | None, seen: Sequence[tuple[str, str]]
) -> None:
    """Check one file and, before it, the user's own files that it starts from."""
    group, _ = name
    source = Source(own[name], group, _text(own[name]))
    root = _tree(source)
    named = dict(_items(root))
    is_global = re.search(r"^#\s*@package\s+_global_", source.text, re.MULTILINE) is not None
    listed = _defaults(source, named.get("defaults"), options)
    kind = _class_of(name, options) or parent
    for below in listed:
        if below in own and below not in (*seen, name):
            _check_file(below, own, options, kind if below[0] == group else None, (*seen, name))
    body = [(key, value, line) for key, value, line in _lines(root) if key != "defaults"]
    if is_global:
        _check_global(source, body)
    elif kind is not None:
        _check_mapping(source, body, (kind,), "", f"{group}=")
        _check_agents_named(source, root, kind, named)
    elif group in KINDS or group in PLAIN:
        names = [schema_name for schema_name in schema.SCHEMAS if schema_name.split("_")[0] == group]
        first = f"  - /schema/{'NAME' if len(names) > 1 else names[0]}{HERE}"
        source.refuse(
            1,
            "defaults",
            f"name no schema, so that no key of {group}= could be checked",
            f"begin the file with a line 'defaults:' and below it '{first}' and '  - {SELF}'"
            + (f"; NAME is one of {' '.join(names)}" if len(names) > 1 else ""),
        )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(shortest(path), f"cannot be read ({error})", "it must be a text file in UTF-8") from error


def _tree(source: Source) -> yaml.MappingNode:
    """The file's nodes, with their lines; no key stands twice in one mapping."""
    try:
        root = yaml.compose(source.text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        shown = "".join(source.text.splitlines()[line - 1 : line]).strip() or "its end"
        if "'\\t'" in str(error.problem):
            source.refuse(line, shown, "begins with a tab", "indent with spaces")
        source.refuse(line, shown, f"is no YAML ({error.problem})", f"close every bracket and quote; {QUOTES}")
    except yaml.YAMLError as error:
        source.refuse(1, "", f"is no YAML ({str(error).splitlines()[0]})", "write plain text in UTF-8")
    if root is None:  # nothing, or comments alone
        raise ConfigError(shortest(source.path), "is empty", "ippo-train --new-task FILE writes one to start from")
    if not isinstance(root, yaml.MappingNode):
        source.refuse(root, _spelled(source, root), "is no mapping", "write 'key: value' lines")
    _refuse_duplicates(source, root)
    return root


def _refuse_duplicates(source: Source, node: yaml.Node) -> None:
    if isinstance(node, yaml.SequenceNode):
        for part in node.value:
            _refuse_duplicates(source, part)
    if not isinstance(node, yaml.MappingNode):
        return
    lines: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            source.refuse(key, _spelled(source, key), "is no key", QUOTES)
        if key.value in lines:
            source.refuse(key, key.value, f"stands twice; first in line {lines[key.value]}", "keep one of them")
        lines[key.value] = key.start_mark.line + 1
        _refuse_duplicates(source, value)


def _items(node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node]]:
    yield from ((key.value, value) for key, value in node.value if key.value != "<<")


def _lines(node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node, int]]:
    """Keys and values, with the line of the key."""
    yield from ((key.value, value, key.start_mark.line + 1) for key, value in node.value if key.value != "<<")


def _spelled(source: Source, node: yaml.Node) -> str:
    """A node as it stands in the file, on one line."""
    return " ".join(source.text[node.start_mark.index : node.end_mark.index].split())[:60]


# --- the defaults list -----------------------------------------------------------------------------------------------


def _defaults(source: Source, node: yaml.Node | None, options: Options) -> list[tuple[str, str]]:
    """Group and option of everything that the file starts from, each known to be there."""
    if node is None:
        return []
    if not isinstance(node, yaml.SequenceNode):
        source.refuse(node, "defaults", "is no list", f"write one entry per line, such as '  - {SELF}'")
    found: list[tuple[str, str]] = []
    for part in node.value:
        name = _entry(source, part)
        if name is None:
            continue
        group, option = name
        known = list(schema.SCHEMAS) if group == "schema" else [o for g, o in options if g == group]
        if option not in known and "${" not in option:
            groups = sorted({g for g, _ in options} | {"schema"})
            remedy = f"there are {' '.join(known)}" if known else f"there are the groups {' '.join(groups)}"
            source.refuse(part, _spelled(source, part), f"names nothing that is there{closest(option, known)}", remedy)
        found.append(name)
    return found


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
    source = Source(options[name], group, _text(options[name]))
    root = yaml.compose(source.text, Loader=yaml.SafeLoader)
    listed = dict(_items(root)).get("defaults") if isinstance(root, yaml.MappingNode) else None
    for part in listed.value if isinstance(listed, yaml.SequenceNode) else ():
        below = _entry(source, part)
        if below is not None and below[0] in ("schema", "base", group):
            found = _class_of(below, options, (*seen, name))
            if found is not None:
                return found
    return None


# --- keys and values -------------------------------------------------------------------------------------------------


def _check_global(source: Source, body: Iterable[tuple[str, yaml.Node, int]]) -> None:
    """A file that sets values of several groups, whichever options those have."""
    groups = {**{group: (cls,) for group, cls in PLAIN.items()}, **{g: tuple(k.values()) for g, k in KINDS.items()}}
    top = {leaf.name for leaf in fields(schema.RunConfig)}
    for key, node, line in body:
        if key in groups and isinstance(node, yaml.MappingNode):
            _check_mapping(source, _lines(node), groups[key], f"{key}.", f"{key}=")
        elif key in top:
            _check_mapping(source, [(key, node, line)], (schema.RunConfig,), "", "a run")
        elif key != "hydra":
            _refuse_key(source, line, key, key, [*top, *groups], "a run")


def _check_mapping(
    source: Source, body: Iterable[tuple[str, yaml.Node, int]], classes: Sequence[type[Any]], prefix: str, owner: str
) -> None:
    """Every key is one of some of the classes, with a value of its type."""
    hints = {name: hint for cls in reversed(classes) for name, hint in get_type_hints(cls).items()}
    for key, node, line in body:
        full = prefix + key
        if key not in hints:
            _refuse_key(source, line, key, full, list(hints), owner)
        hint = hints[key]
        if get_origin(hint) is dict and get_args(hint)[1] is Any:  # keys of the user's choice
            continue
        if get_origin(hint) is dict:  # the named agents
            if not isinstance(node, yaml.MappingNode):
                source.refuse(
                    line,
                    full,
                    f"is {_named(source, node)}, and must be named agents",
                    'write below it a line for each, such as: solver: {template: "{question}"}',
                )
            for agent, value, at in _lines(node):
                if not isinstance(value, yaml.MappingNode):
                    source.refuse(
                        at,
                        f"{full}.{agent}",
                        f"is {_named(source, value)}, and must be an agent",
                        f'write: {agent}: {{template: "{{question}}"}}',
                    )
                _check_mapping(source, _lines(value), (schema.AgentConfig,), f"{full}.{agent}.", "an agent")
                if "template" not in dict(_items(value)) and not source.text.count("<<"):
                    _require_template(source, at, f"{full}.{agent}")
        elif is_dataclass(hint):
            if not isinstance(node, yaml.MappingNode):
                if "${" in _spelled(source, node):
                    continue
                source.refuse(
                    line,
                    full,
                    f"is {_named(source, node)}, and has keys of its own",
                    "it has: " + " ".join(leaf.name for leaf in fields(hint)),
                )
            assert isinstance(hint, type)
            _check_mapping(source, _lines(node), (hint,), f"{full}.", full)
        else:
            _check_leaf(source, node, line, key, full, hint, classes)


def _require_template(source: Source, line: int, where: str) -> None:
    source.refuse(line, f"{where}.template", "is missing", 'give the prompt: template: "{question}"')


def _check_leaf(
    source: Source, node: yaml.Node, line: int, key: str, full: str, hint: Any, classes: Sequence[type[Any]]
) -> None:
    written = _spelled(source, node)
    if hint is Any or (isinstance(node, yaml.ScalarNode) and "${" in written):
        return  # what an interpolation stands for is known when all is composed
    try:
        value = cast(DictConfig, OmegaConf.create(_alone(node, key)))[key]
    except (
        yaml.YAMLError,
        OmegaConfBaseException,
    ):  # an anchor that lies elsewhere, say: composing tells what is wrong with it
        return
    if any(_fits(cls, key, value) for cls in classes):
        return
    if isinstance(node, yaml.MappingNode) and node.flow_style:
        source.refuse(
            line,
            f"{full}: {written}",
            f"is a mapping, and must be {expected(hint)}",
            f'put quotes around it: {key}: "{written}"',
        )
    source.refuse(line, full, f"is {_named(source, node)}", f"it must be {expected(hint)}")


def _fits(cls: type[Any], key: str, value: Any) -> bool:
    if key not in get_type_hints(cls):
        return False
    try:
        OmegaConf.merge(OmegaConf.structured(schema.unset(cls)), {key: value})
    except OmegaConfBaseException:
        return False
    return True


def _alone(node: yaml.Node, key: str) -> str:
    """A document of this key and value alone."""
    return yaml.serialize(
        yaml.MappingNode("tag:yaml.org,2002:map", [(yaml.ScalarNode("tag:yaml.org,2002:str", key), node)])
    )


def expected(hint: Any) -> str:
    """A type in words."""
    if get_origin(hint) is list:
        (item,) = get_args(hint)
        return "a list" + (f" of {' '.join(part.value for part in item)}" if _is_enum(item) else "")
    parts = get_args(hint) or (hint,)
    return " or ".join(
        "one of " + " ".join(member.value for member in part) if _is_enum(part) else KIND_NAMES.get(part, str(part))
        for part in parts
    )


def _is_enum(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Enum)


def _named(source: Source, node: yaml.Node) -> str:
    """What a node is, in words."""
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    return "empty" if not _spelled(source, node) else repr(_spelled(source, node))


def _refuse_key(source: Source, line: int, key: str, full: str, known: Sequence[str], owner: str) -> NoReturn:
    remedy = "it has: " + " ".join(known)
    source.refuse(line, full, f"is no key of {owner}{closest(key, known)}", remedy)


def closest(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f" (closest: {close[0]})" if close else ""


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
