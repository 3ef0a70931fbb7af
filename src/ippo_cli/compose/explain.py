"""Explanation of a single invalid override, with a remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from ippo_cli.compose.aliases import SuggestionKind, find_suggestion, read_option_names
from ippo_cli.compose.arguments import open_bracket_error
from ippo_cli.compose.known_keys import agent_names
from ippo_cli.compose.load import compose_node
from ippo_cli.compose.plugins import PACKAGES, missing_plugin_error
from ippo_cli.compose.searchpath import search_path_entries, user_option_files
from ippo_cli.compose.validate import LIST_RULE, Mistake, kind_rule, sort_keys, value_rule
from ippo_cli.compose.yaml_source import shorten_path
from ippo_cli.config.commands import expand_home
from ippo_cli.config.doors import CODE_CHOICES, find_entry_points
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.leaves import iter_leaves
from ippo_cli.config.schema import OPTIONS, Composition
from ippo_cli.config.text import closest_hint

OPTION_LEAVES = ("name", "kind", "type")  # keys of other programs that choose an option of a group
CANNOT_COMPOSE = "cannot be composed"
TYPO_CUTOFF = 0.8
"""Minimum similarity to a known name for a suggestion."""
MIN_ABBREVIATION = 3  # letters
DECIMAL_COMMA = re.compile(r"-?\d+,\d+")
YAML_FILES = (".yaml", ".yml")


@lru_cache(maxsize=8)
def compose_cached(overrides: tuple[str, ...]) -> DictConfig:
    """Cached composition, which must not be modified; composing takes half a second."""
    return compose_node(overrides)


def explain_override(
    text: str, good: list[str], error: Exception | Mistake, options: Mapping[str, Sequence[str]]
) -> ConfigError:
    """Explain why an override cannot be applied after those in `good`; `options`: options by group."""
    key, equals, value = text.partition("=")
    name = key.lstrip("+~")
    if name in PACKAGES:
        return missing_plugin_error(name, value)
    if not equals:
        removed = _explain_agent(text, name, value, compose_cached(tuple(good))) if text.startswith("~") else None
        return removed or explain_argument(text, options)
    if not all(name.split(".")):  # OmegaConf would resolve `.seed` as `seed`
        bare = ".".join(part for part in name.split(".") if part)
        known = (
            bare in options or OmegaConf.select(compose_cached(tuple(good)), bare, throw_on_missing=False) is not None
        )
        remedy = f"use {bare}={value}" if known else "write GROUP.KEY=VALUE; ippo-train --help lists all keys"
        return ConfigError(text, "is not a key: it has a dot too many", remedy)
    if name in options and isinstance(error, Exception):
        return _explain_choice(text, name, value, good, options[name], error)
    node = compose_cached(tuple(good))
    if (wrong := _explain_agent(text, name, value, node)) is not None:
        return wrong
    present = OmegaConf.select(node, name, throw_on_missing=False)
    keys = list(_iter_keys(node))
    if isinstance(error, Mistake) and error.hint is None:
        of_kind = kind_rule(error)
        return ConfigError(text, *of_kind) if of_kind else explain_key(text, name, node, keys, options)
    if isinstance(error, Mistake) or name in keys or present is not None:
        return _explain_value(text, name, value, error, present)
    return explain_key(text, name, node, keys, options)


def _iter_keys(node: DictConfig) -> Iterator[str]:
    """All keys of a composition; for agents also keys that only their groups set."""
    names = [str(name) for name in node.task.agents]
    for key, _ in iter_leaves(sort_keys(Composition, OmegaConf.to_container(node, resolve=False))):
        if not key.startswith(("hydra.", "task.agents.")):
            yield key
        elif names and not key.startswith("hydra."):
            yield from (f"task.agents.{name}.{leaf}" for name in names for leaf in agent_names())
            names = []


def explain_argument(text: str, options: Mapping[str, Sequence[str]]) -> ConfigError:
    """Explain an argument without `=`: suggest the key that it may be a value of."""
    place = expand_home(text)
    meant = "use key=value; see ippo-train --help"
    if text.endswith(YAML_FILES):
        meant = f"did you mean task={text}?"
    elif (place / "config.yaml").is_file() and (place / "overrides.json").is_file():
        meant = f"did you mean resume={text}?"
    elif (place / "config.json").is_file():
        meant = f"did you mean actor=full actor.model={text}?"
    elif text.endswith((".jsonl", ".json", ".csv", ".parquet")):
        meant = f"did you mean task=jsonl task.train={text}?"
    elif text.endswith(".py"):
        meant = f"did you mean reward=function reward.function={text}:NAME?"
    elif found := [group for group, known in options.items() if text in known]:
        choices = [f"{'+' if group == 'experiment' else ''}{group}={text}" for group in found[:3]]
        meant = f"did you mean {' or '.join(choices)}?"
    elif text in options:
        meant = f"choose an option: {text}={'|'.join(options[text][:3])}; see ippo-train --help {text}"
    return ConfigError(repr(text), "is an unexpected argument", meant)


def explain_several_values(text: str, field_value: Any) -> ConfigError:
    """Explain comma-separated values outside a sweep; `field_value` is the current value of the key."""
    key, _, value = text.partition("=")
    if DECIMAL_COMMA.fullmatch(value) and isinstance(field_value, float):
        return ConfigError(text, "has a decimal comma", f"use {key}={value.replace(',', '.')}")
    sweep = "add -m to train once with each of them"
    is_text = not isinstance(field_value, int | float | list)  # bool is an int
    quoted = "" if not is_text else f"; one text with a comma needs quotes: '{key}=\"{value}\"'"
    return ConfigError(text, "has several values", f"{sweep}{quoted}")


def _explain_agent(text: str, name: str, value: str, node: DictConfig) -> ConfigError | None:
    if (agent := re.match(r"task\.agents\.([^.]+)", name)) and not re.fullmatch(r"[A-Za-z]\w*", agent[1]):
        return ConfigError(text, f"names an agent {agent[1]!r}", "use letters, digits and '_' in its name")
    if name == "task.agents":
        known = " ".join(f"~task.agents.{known}" for known in node.task.agents)
        return ConfigError(
            text,
            "sets several agents, but agents are added and removed one by one",
            "use +task.agents.NAME.template=TEXT to add one" + (f", and {known} to remove these" if known else ""),
        )
    if agent := re.fullmatch(r"task\.agents\.(\w+)(\..+)?", name):
        if value == "null" and not agent[2]:
            return ConfigError(text, "does not remove the agent", f"use ~{name}")
        if agent[1] not in node.task.agents:
            known = " ".join(str(known) for known in node.task.agents)
            added = "" if text.startswith("~") else f"; +{name}{'' if agent[2] else '.template'}= adds one"
            rule = f"names no agent{closest_hint(agent[1], known.split())}"
            return ConfigError(text, rule, f"known agents: {known or 'none'}{added}")
    return None


def _explain_value(text: str, name: str, value: str, error: Exception | Mistake, default: Any) -> ConfigError:
    text, bare = text.removeprefix("++"), value.strip("'\"")  # keys of open mappings have got this prefix
    if (unclosed := open_bracket_error(text, bare)) is not None:
        return unclosed
    if any(bare.count(opening) != bare.count(closing) for opening, closing in ("[]", "{}")):
        return ConfigError(text, "has brackets that do not match", f"close every bracket, and quote it: '{name}=[a,b]'")
    if not isinstance(error, Mistake):  # a list and a mapping cannot be merged
        if isinstance(default, ListConfig):
            return ConfigError(text, LIST_RULE, f"write '{name}=[a,b]'")
        if isinstance(default, DictConfig):
            return ConfigError(text, "must be a mapping", f"write '{name}={{name:value}}'")
        return ConfigError(text, "is not a valid value", summarize_message(error))
    rule, remedy = value_rule(error, default)
    if rule == LIST_RULE and (several := text.partition("=")[2]) and not re.search(r"[\[\]{}'\"]", several):
        remedy = f"write '{name}=[{several}]'"
    return ConfigError(text, rule, remedy)


def explain_key(
    text: str, name: str, node: DictConfig, keys: Sequence[str], options: Mapping[str, Sequence[str]]
) -> ConfigError:
    """Explain an unknown key: suggest another option, a counterpart of another project's key, or similar keys."""
    group, _, leaf = name.partition(".")
    kinds = OPTIONS.get(group, {}).items()
    others = [kind for kind, cls in kinds if kind and leaf in {field.name for field in fields(cls)}]
    if others:
        return ConfigError(
            text,
            f"is not a key of {group}={node[group].kind}",
            "use " + " or ".join(f"{group}={kind}" for kind in others),
        )
    return explain_unknown_name(text, name, keys, options)


def explain_unknown_name(
    text: str, name: str, keys: Sequence[str], options: Mapping[str, Sequence[str]]
) -> ConfigError:
    """Explain a key that no option has; `keys` are those that it may mean."""
    group, _, leaf = name.partition(".")
    value = text.partition("=")[2]
    if (option := _meant_option(leaf, value, options.get(group, ()))) is not None:
        return ConfigError(text, "is not a key", f"an option is chosen by its group: use {group}={option}")
    if leaf == "kind" and group in options:
        return ConfigError(text, "is not a key", f"choose an option of {group}: {' '.join(options[group])}")
    if name not in keys and (own := [key for key in keys if key.lower() == name.lower().strip(".")]):
        return ConfigError(text, "is not a key", f"did you mean {own[0]}?")
    groups = _find_typos(group, options) if leaf and group not in options else []
    if meant := [key for known in groups if (key := f"{known}.{leaf}") in keys]:
        return ConfigError(text, "is not a key", f"did you mean {meant[0]}?")
    corrected = list(dict.fromkeys(candidate for key in keys if (candidate := _correct_one_part(name, key))))
    answer = None if corrected or ".agents." in name else find_suggestion(name, value)
    same = [leaf for leaf in keys if leaf.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1] and ".agents." not in leaf]
    has_same_name = same and answer is not None and answer.text.rpartition(".")[2] == name
    if answer is not None and answer.text != name and not has_same_name:
        return ConfigError(text, answer.rule, answer.remedy)
    if DECIMAL_COMMA.fullmatch(value) and len(own := [key for key in keys if key.rpartition(".")[2] == name]) == 1:
        return ConfigError(text, "is not a key, and has a decimal comma", f"use {own[0]}={value.replace(',', '.')}")
    completed = [] if ".agents." in name else _complete_abbreviation(name, value, keys, options)
    if same and ".agents." not in name and not (completed and "." in name):
        return ConfigError(text, "is not a key", "did you mean " + " or ".join(same[:3]) + "?")
    if corrected:
        return ConfigError(text, "is not a key", "did you mean " + " or ".join(corrected[:3]) + "?")
    if close := completed or _similar_names(name, [*_candidate_keys(name, keys, options)]):
        return ConfigError(text, "is not a key", "did you mean " + " or ".join(close) + "?")
    return ConfigError(text, "is not a key", _list_keys_hint(group if leaf else "", leaf, keys, options))


def _list_keys_hint(group: str, leaf: str, keys: Sequence[str], options: Mapping[str, Sequence[str]]) -> str:
    """Where the keys of a group are listed, and those with similar names."""
    names = {key.removeprefix(f"{group}."): key for key in keys if key.startswith(f"{group}.")}
    if group not in options or not names:
        return "ippo-train --help and docs/config.md list all keys"
    close = [names[name] for name in difflib.get_close_matches(leaf, names, n=3, cutoff=0.3)]
    return f"ippo-train --help {group} lists its keys" + (f"; closest: {' '.join(close)}" if close else "")


def _meant_option(leaf: str, value: str, options: Sequence[str]) -> str | None:
    """The option that a key and its value spell: `zero3` of `deepspeed.zero=3`, `wandb` of `tracker.wandb=true`."""
    named = [value] if leaf in OPTION_LEAVES else []
    named += [f"{leaf}{value}", f"{leaf}_{value}", *([leaf] if value.lower() in ("true", "1", "yes", "on") else ())]
    return next((name for name in named if name in options), None)


def _complete_abbreviation(
    name: str, value: str, keys: Sequence[str], options: Mapping[str, Sequence[str]]
) -> list[str]:
    """The groups and keys that a name abbreviates: `algorithm` for `alg`, `rollout.temperature` for `roll.temp`.

    A group without that option is no candidate.
    """
    parts = name.split(".")
    if not all(len(part) >= MIN_ABBREVIATION for part in parts):
        return []
    groups = [group for group, known in options.items() if value in known or value.endswith(YAML_FILES)]
    if chosen := [f"{group}={value}" for group in groups if group.startswith(name)]:
        return chosen
    names = [key for key in keys if ".agents." not in key]
    found = [key for key in names if _starts_each_part(parts, key.split("."))]
    leaves = {key: key.rpartition(".")[2] for key in names if len(parts) == 1}
    tails = [key for key, leaf in leaves.items() if leaf.startswith(name) or leaf.endswith(f"_{name}")]
    return list(dict.fromkeys([*found, *tails]))[:3]


def _starts_each_part(typed: Sequence[str], known: Sequence[str]) -> bool:
    return len(typed) == len(known) and all(part.startswith(start) for start, part in zip(typed, known, strict=True))


def _correct_one_part(name: str, key: str) -> str | None:
    """Replace a single mistyped part of a long name by the key's part; keeps an agent's name."""
    typed, known = name.split("."), key.split(".")
    if len(typed) != len(known) or len(typed) < 3:
        return None
    known = [typed[at] if known[at - 1 : at] == ["agents"] else part for at, part in enumerate(known)]
    wrong = [(part, known_part) for part, known_part in zip(typed, known, strict=True) if part != known_part]
    return ".".join(known) if len(wrong) == 1 and _find_typos(wrong[0][0], [wrong[0][1]]) else None


def _explain_choice(
    text: str, group: str, value: str, good: Sequence[str], options: Sequence[str], error: Exception
) -> ConfigError:
    """Explain an option that does not exist, or that cannot be composed."""
    option = value.strip("'\"")
    if option in options:
        own = [shorten_path(file) for at, file in user_option_files(good) if (at, file.stem) == (group, option)]
        return ConfigError(text, CANNOT_COMPOSE, f"{' '.join(own)}{': ' if own else ''}{summarize_message(error)}")
    if option.startswith("{"):
        return ConfigError(text, f"sets several keys of {group}", f"set them one by one: {group}.KEY=VALUE")
    if option.startswith("["):
        return ConfigError(
            text, "names several options of a group with one choice", _choose_option_hint(option, options)
        )
    for folder in search_path_entries(good):
        if (file := Path(folder) / group / f"{option}.yml").is_file():
            return ConfigError(
                text,
                f"is {shorten_path(file)}, but files of options must end in .yaml",
                f"rename it, or use {group}={shorten_path(file)}",
            )
    if (known := read_option_names().get(group, {}).get(option.lower())) is not None:
        is_option = known.kind is SuggestionKind.use
        return ConfigError(text, "is an unknown option", f"use {group}={known.text}" if is_option else known.text)
    for ending in YAML_FILES:
        if (file := expand_home(f"{option}{ending}")).is_file():
            return ConfigError(text, "is an unknown option", f"did you mean {group}={option}{ending}?")
    if group in CODE_CHOICES:
        options = [*options, *find_entry_points(CODE_CHOICES[group][1].group)]
    own = option if re.fullmatch(r"[\w-]+", option) else "mine"
    own_file = "" if "/" in option else f"; choose your own file by its path: {group}=path/to/{own}.yaml"
    return ConfigError(text, "is an unknown option", _choose_option_hint(option, options) + own_file)


def _choose_option_hint(name: str, options: Sequence[str]) -> str:
    close = difflib.get_close_matches(name.lower(), options, n=1, cutoff=0.6)
    return (f"closest: {close[0]}; " if close else "") + "choose from " + " ".join(options)


def _candidate_keys(name: str, keys: Iterable[str], options: Iterable[str]) -> list[str]:
    """Candidates for a mistyped name: keys and groups; agents' keys only for a name of an agent."""
    wanted = [key for key in keys if (".agents." in key) == (".agents." in name)]
    return [*wanted, *(group for group in options if "." not in name)]


def _similar_names(name: str, known: Sequence[str]) -> list[str]:
    """Known names similar to a mistyped one."""
    own = name.rsplit(".", 1)[-1]
    tails = dict.fromkeys(key.rsplit(".", 1)[-1] for key in known)
    # Long names may be similar only in their group, so compare the last part too.
    near = [key for key in known if "." not in name or _find_typos(own, [key.rsplit(".", 1)[-1]])]
    close = difflib.get_close_matches(name, near, n=3, cutoff=0.6) if "." in name else _find_typos(name, near)
    return close or [key for tail in _find_typos(own, tails) for key in known if key.rsplit(".", 1)[-1] == tail][:3]


def _find_typos(text: str, known: Iterable[str]) -> list[str]:
    """Known names with a similar spelling or the same letters in another order, such as `seed` for `sede`."""
    names = list(known)
    reordered = [name for name in names if sorted(name) == sorted(text)]
    # One wrong letter of a short name is below the cutoff.
    reordered += [name for name in names if len(name) == len(text) > 3 and _count_differences(name, text) == 1]
    return list(dict.fromkeys([*reordered, *difflib.get_close_matches(text, names, n=3, cutoff=TYPO_CUTOFF)]))[:3]


def _count_differences(one: str, other: str) -> int:
    return sum(a != b for a, b in zip(one, other, strict=True))


def summarize_message(error: Exception) -> str:
    """Summarise Hydra's message in one line, without its advice to use `+`."""
    words = str(error.__cause__)
    words = str(error) if words in ("None", "") else words  # causes of parser errors may have no message
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    noise = ("To append", "full_key", "object_type", "reference_type")
    return "; ".join(line for line in lines if not line.startswith(noise))[:400]
