"""Interpolations in files: YAML files and runs of other people must not read the environment or call other code."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException
from omegaconf.grammar.gen.OmegaConfGrammarParser import OmegaConfGrammarParser
from omegaconf.grammar_parser import parse

from ippo_cli.compose.path_keys import TEXT_KEYS, is_global_option
from ippo_cli.compose.resolvers import RESOLVERS
from ippo_cli.compose.yaml_source import YamlSource
from ippo_cli.config.commands import quote_for_shell
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.leaves import iter_leaves

ENVIRONMENT = "oc.env"
FILE_RESOLVERS = frozenset({*RESOLVERS, "oc.select", "oc.deprecated", "oc.dict.keys", "oc.dict.values", "now"})
"""Resolvers that files may call: they read only the configuration and the time."""
PROMPT_KEYS = re.compile(r"task\.agents\.\w+\.(?!(actor|critic)\b).*")


def check_interpolations(source: YamlSource, root: yaml.Node) -> None:
    """Raise `ConfigError` if a value of a YAML file calls a resolver that is not in `FILE_RESOLVERS`.

    An escaped `\\${` is checked too, except in prompts: a sweep types its values as overrides, which resolves them.
    """
    prefix = "" if is_global_option(source.text) else source.group.replace("/", ".")
    for key, node in _iter_scalars(root, prefix):
        text = node.value if TEXT_KEYS.fullmatch(key) else re.sub(r"\\+\$\{", "${", node.value)
        for name in find_resolvers(text):
            if name not in FILE_RESOLVERS:
                local_key = key.removeprefix(f"{source.group}.")
                typed = quote_for_shell(f"{key}=${{{name}:...}}")
                source.raise_error(
                    node, local_key, _describe_call(name), f"type the value on the command line: {typed}"
                )


def check_saved_prompts(folder: Path, saved: Sequence[str], typed_now: Sequence[str]) -> None:
    """Raise `ConfigError` if a saved override of a run puts an environment variable into a prompt."""
    typed = {text.partition("=")[0].lstrip("+") for text in typed_now}
    for text in saved:
        if "${" not in text:
            continue
        for key, value in _override_leaves(text):
            is_prompt = PROMPT_KEYS.fullmatch(key) or TEXT_KEYS.fullmatch(key)
            if not is_prompt or key in typed or not isinstance(value, str):
                continue
            for name in find_resolvers(value):
                if name not in FILE_RESOLVERS:
                    raise ConfigError(
                        f"{folder}/overrides.json: {key}",
                        _describe_call(name),
                        f"if the run is yours, type the value again: {quote_for_shell(f'{key}=...')}",
                    )


def find_resolvers(text: str) -> list[str]:
    """Names of the resolvers that a text calls, nested calls included; a computed name is returned as written."""
    if "${" not in text:
        return []
    try:
        return list(_iter_resolvers(parse(text)))
    except OmegaConfBaseException:
        return []  # composition reports the syntax error


def _iter_resolvers(node: Any) -> Iterator[str]:
    if isinstance(node, OmegaConfGrammarParser.ResolverNameContext):
        yield node.getText()
    for child in getattr(node, "children", None) or ():
        yield from _iter_resolvers(child)


def _iter_scalars(node: yaml.Node, key: str) -> Iterator[tuple[str, yaml.ScalarNode]]:
    if isinstance(node, yaml.ScalarNode):
        yield key, node
    elif isinstance(node, yaml.SequenceNode):
        for part in node.value:
            yield from _iter_scalars(part, key)
    elif isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            yield from _iter_scalars(name, key)
            yield from _iter_scalars(value, f"{key}.{name.value}" if key else str(name.value))


def _override_leaves(text: str) -> list[tuple[str, Any]]:
    """Dotted keys and values of an override; empty if Hydra cannot parse it."""
    try:
        override = OverridesParser.create().parse_override(text)
        return list(iter_leaves(override.value(), override.key_or_group))
    except (HydraException, OmegaConfBaseException):
        return []


def _describe_call(name: str) -> str:
    if name == ENVIRONMENT:
        return "reads an environment variable, which may be a secret, and only the command line may do so"
    return f"calls the resolver {name}, which files may not call, because it may read secrets or run code"
