"""From Hydra's errors to ours: which override is wrong, and what would work."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ippo_cli.cli.plugins import PACKAGES, no_such_plugin, plugin_not_found
from ippo_cli.config.aliases import ours
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.load import KINDS, SWEEPS, compose_node, config_dir, leaves
from ippo_cli.config.searchpath import SEARCH_PATH, entries, options_below, own_files
from ippo_cli.config.text import closest
from ippo_cli.config.yaml_source import shortest

HIDDEN_GROUPS = ("base", "schema")


def diagnose(overrides: Sequence[str], error: Exception) -> ConfigError:
    """The first override that cannot be applied, with its remedy; Hydra's own words where none is to blame."""
    good: list[str] = []
    for text in sorted(overrides, key=_turn):
        try:
            compose_node([*good, *_single_values(text)])
        except (HydraException, OmegaConfBaseException) as own:
            return _explain(text, good, own)
        good += _single_values(text)
    if several := re.search(r"Ambiguous value for argument '(.*)'", str(error)):
        key, _, values = several[1].partition("=")
        return ConfigError(
            several[1], "has several values", f"add -m to sweep over them, or write a list: {key}=[{values}]"
        )
    return plugin_not_found(str(error)) or ConfigError("configuration", "cannot be composed", _first_lines(error))


def groups(overrides: Sequence[str] = ()) -> dict[str, list[str]]:
    """The configuration groups and their options, those in folders that the overrides add included."""
    found: dict[str, list[str]] = {}
    for group, file in (*options_below(config_dir()), *own_files(overrides)):
        if group.split("/")[0] not in HIDDEN_GROUPS:
            found.setdefault(group, []).append(file.stem)
    return found


def offered(completions: str) -> str:
    """Hydra's answer to a shell's question, without the groups that are no user's choice."""
    internal = "|".join(HIDDEN_GROUPS)
    return re.sub(rf"(?<!\S)[+~]?(?:{internal})(?:[=/]\S*)?(?!\S)[ \n]?", "", completions)


def _turn(text: str) -> tuple[bool, bool]:
    """Folders first, for the options in them; then choices: they decide what keys exist."""
    return not text.startswith(SEARCH_PATH), text.split("=")[0].lstrip("+~") not in groups()


def _single_values(text: str) -> list[str]:
    """The override with the first value of a sweep: `seed=1,2` is no value outside a sweep."""
    parsed = OverridesParser.create().parse_override(text)
    if parsed.is_sweep_override():
        value = next(iter(parsed.sweep_string_iterator()))
        return [f"{text.split('=')[0]}={value}"]
    return [text]


def _explain(text: str, good: list[str], error: Exception) -> ConfigError:
    key, _, value = text.partition("=")
    name = key.lstrip("+~")
    if name in PACKAGES:
        return no_such_plugin(name, value)
    options = groups(good)
    if not _:
        return ConfigError(repr(text), "is no override", "write key=value; see ippo-train --help")
    if name in options:
        return _explain_choice(text, name, value, good, options[name], error)
    node = compose_node(good)
    plain = OmegaConf.to_container(node, resolve=False)
    keys = [leaf for leaf, _ in leaves(plain) if not leaf.startswith("hydra.")]
    if (agent := re.match(r"task\.agents\.([^.]+)", name)) and not re.fullmatch(r"[A-Za-z]\w*", agent[1]):
        return ConfigError(text, f"names an agent {agent[1]!r}", "use letters, digits and '_' in its name")
    if name == "task.agents" and _:
        there = " ".join(f"~task.agents.{known}" for known in node.task.agents)
        return ConfigError(
            text,
            "names agents at once, and they are added and removed one by one",
            "use +task.agents.NAME.template=TEXT to add one"
            + (f", and {there} to remove those there are" if there else ""),
        )
    if agent := re.fullmatch(r"task\.agents\.(\w+)(\..+)?", name):
        if value == "null" and not agent[2]:
            return ConfigError(text, "does not remove the agent", f"use ~{name}")
        if agent[1] not in node.task.agents:
            there = " ".join(str(known) for known in node.task.agents)
            return ConfigError(
                text,
                f"names no agent{closest(agent[1], there.split())}",
                f"there {'are' if there else 'is'} {there or 'none yet'}; "
                f"+{name}{'' if agent[2] else '.template'}= adds one",
            )
    if name in keys or OmegaConf.select(node, name, throw_on_missing=False) is not None:
        bare = value.strip("'\"")
        if re.match(r"\w+\(", bare) and (missing := bare.count("(") - bare.count(")")) > 0:
            return ConfigError(text, "opens a bracket and does not close it", f"use '{key}={bare}{')' * missing}'")
        return ConfigError(text, "does not fit", _first_lines(error))
    group, _, leaf = name.partition(".")
    kinds = SWEEPS if group == "sweep" else KINDS.get(group, {})
    others = [kind for kind, cls in kinds.items() if leaf in {field.name for field in fields(cls)}]
    if others:
        return ConfigError(
            text,
            f"is no key of {group}={node[group].kind.value}",
            "use " + " or ".join(f"{group}={kind}" for kind in others),
        )
    elsewhere = ours(name)
    if elsewhere is not None and elsewhere[1] != name:
        return ConfigError(text, f"is no key here ({elsewhere[0]} has it)", f"use {elsewhere[1]}")
    same = [leaf for leaf in keys if leaf.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1] and ".agents." not in leaf]
    if same and ".agents." not in name:
        return ConfigError(text, "is no key", "did you mean " + " or ".join(same[:3]) + "?")
    if mended := list(dict.fromkeys(one for key in keys if (one := _with_one_part_mended(name, key)))):
        return ConfigError(text, "is no key", "did you mean " + " or ".join(mended[:3]) + "?")
    return ConfigError(
        text, "is no key", _suggest(name, _reachable(name, keys, options), "did you mean ", question=True)
    )


def _with_one_part_mended(name: str, key: str) -> str | None:
    """A long name as it was typed, but for one part that is spelled as the key's: an agent's own name stays."""
    typed, known = name.split("."), key.split(".")
    if len(typed) != len(known) or len(typed) < 3:
        return None
    known = [typed[at] if known[at - 1 : at] == ["agents"] else part for at, part in enumerate(known)]
    wrong = [(one, other) for one, other in zip(typed, known, strict=True) if one != other]
    alike = len(wrong) == 1 and difflib.get_close_matches(wrong[0][0], [wrong[0][1]])
    return ".".join(known) if alike else None


def _explain_choice(
    text: str, group: str, value: str, good: Sequence[str], options: Sequence[str], error: Exception
) -> ConfigError:
    """A group's option that is not there, or one that cannot be composed."""
    option = value.strip("'\"")
    if option in options:
        own = [shortest(file) for at, file in own_files(good) if (at, file.stem) == (group, option)]
        return ConfigError(text, "cannot be composed", f"{' '.join(own)}{': ' if own else ''}{_first_lines(error)}")
    if option.startswith("{"):
        return ConfigError(text, f"gives values to {group}=, whose values are set one by one", f"use {group}.KEY=VALUE")
    for folder in entries(good):
        if (file := Path(folder) / group / f"{option}.yml").is_file():
            return ConfigError(
                text,
                f"lies in {shortest(file)}, and options end in .yaml",
                f"rename it, or use {group}={shortest(file)}",
            )
    return ConfigError(text, "names no option of this group", _suggest(option, options, "use one of "))


def _reachable(name: str, keys: Iterable[str], options: Iterable[str]) -> list[str]:
    """Keys and groups that the name may have meant; agents' keys only for a name about agents."""
    wanted = [key for key in keys if (".agents." in key) == (".agents." in name)]
    return [*wanted, *(group for group in options if "." not in name)]


def _suggest(given: str, known: Sequence[str], words: str, *, question: bool = False) -> str:
    own = given.rsplit(".", 1)[-1]
    tails = {key.rsplit(".", 1)[-1]: key for key in known}
    alike = difflib.get_close_matches(own, tails, n=3, cutoff=0.65)  # config is not meant to be coef
    # In long names all that is alike may be the group, which the keys of a group share.
    near = [key for key in known if "." not in given or difflib.get_close_matches(own, [key.rsplit(".", 1)[-1]])]
    close = difflib.get_close_matches(given, near, n=3, cutoff=0.6) or [tails[tail] for tail in alike]
    if question:
        return words + " or ".join(close) + "?" if close else "docs/config.md lists all keys"
    return words + " ".join(known) + (f" (closest: {close[0]})" if close else "")


def _first_lines(error: Exception) -> str:
    """The part of a message that is about values, on one line, without Hydra's advice to use `+`."""
    words = str(error.__cause__)
    words = str(error) if words in ("None", "") else words  # a parser's cause may have none
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    noise = ("To append", "full_key", "object_type", "reference_type")
    return "; ".join(line for line in lines if not line.startswith(noise))[:400]
