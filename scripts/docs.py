"""Write the generated documents from code: help text, docs/config.md, docs/metrics.md, docs/migrating.md.

`python scripts/docs.py` writes them; with `--check` it only says which are out of date (exit code 1).
"""

from __future__ import annotations

import ast
import inspect
import io
import json
import re
import sys
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin, get_type_hints

from omegaconf import DictConfig, OmegaConf

sys.path.insert(0, str(Path(__file__).parent))

import key_readers

from ippo_cli.cli.help import WIDTH
from ippo_cli.compose.aliases import Suggestion, SuggestionKind, read_projects
from ippo_cli.compose.diagnose import config_groups
from ippo_cli.compose.load import (
    KEYS_PER_AGENT,
    PER_AGENT,
    compose_node,
    config_dir,
    iter_leaves,
    schema_of,
)
from ippo_cli.config import schema
from ippo_cli.config.constraints import OneOf, constraint_from_hint
from ippo_cli.config.doors import find_entry_points
from ippo_cli.config.marks import remove_marks
from ippo_cli.config.schema import AgentConfig
from ippo_cli.reporting.metrics import METRICS

ROOT = Path(__file__).resolve().parents[1]
METHODS = {
    name: point.load()
    for name, point in find_entry_points("ippo.advantages").items()
    if point.value.startswith("ippo_cli.")
}
"""Methods of this package that are entry points, by name."""
ALL_METRICS = METRICS | {key: text for method in METHODS.values() for key, text in method.METRICS.items()}

HELP_HEAD = """\
ippo-train: train language models with PPO and Independent PPO.

Examples
  ippo-train                                        the default run, a few minutes on a CPU
  ippo-train algorithm=ippo critic=separate         the same job spelled out
  ippo-train algorithm=ppo critic=value_head seed=3
  ippo-train launch.processes=2 deepspeed=zero2     two ranks on this machine
  ippo-train task=jsonl task.train=train.jsonl task.eval=test.jsonl actor=full actor.model=PATH \\
             reward=function reward.function=reward.py:score
  ippo-train --new-task mine.yaml                   write a task file with agents of your own
  ippo-train task=mine.yaml                         train on it
  ippo-train -m algorithm=ippo,ppo seed=1,2,3       a sweep; sweep.max_parallel=2: two at a time
  ippo-train -m sweep=ppo_learning_rates            a search by Optuna; sweep=ppo_population: PBT
  ippo-train resume=outputs/default/RUN             continue a run exactly where it stopped
  ippo-train mode=plan                              check everything, show the arithmetic
  ippo-train mode=pilot                             will it learn? a hundredth of the tokens
  ippo-train --help algorithm                       a group; --help rollout.temperature: a key
  ippo-eval run=outputs/default/RUN                 score a checkpoint on held-out data
  ippo-sweep outputs/default/SWEEP                  one table and one picture for a sweep
  ippo-controls task=signalling                     a team beside its control arms: was it the team?
  ippo-bench list                                   a benchmark that other trainers can enter too
  ippo-runs                                         list runs; ippo-runs compare RUN RUN
  ippo-doctor outputs/default/RUN                   why a run does not learn, or this machine
  ippo-verify outputs/default/RUN                   compare with hashes, execute iterations again

Groups (choose with group=option; the first is the default)
"""
HELP_TAIL = """
Keys (override with key=value; all of them with their meaning are in docs/config.md)
"""
HELP_END = """
One agent's own values: task.agents.high.actor.learning_rate=1e-5 (any key of actor and critic,
how it is sampled, algorithm.ppo_epochs and .mini_batch_size), and its kinds:
task.agents.high.critic=value_head
One more agent: +task.agents.checker.template='{question}'; one less: ~task.agents.low;
all of them: 'task.agents={solver:{template:"{question}"},checker:{template:"{answer}?"}}'

Flags
  --cfg job [--resolve]     show the composed configuration and exit
  --config-dir=FOLDER       also look here for options: FOLDER/task/mine.yaml for task=mine
  --new-task FILE.yaml      write a commented task file and example rows, and say how to use them
  -m, --multirun            sweep over comma-separated values, range(1,4), glob(*); resume=auto
                            resumes a sweep
  --info                    versions of this program and its libraries, and where options are found
  --diff RUN [overrides]    keys that differ between a run and these overrides: run -> now
  --completion SHELL        tab completion: eval "$(ippo-train --completion bash)", or zsh, or fish
  -h, --help [GROUP|KEY]    this text, or what a group or key means
  --explain GROUP|KEY       the same: meaning, range, default by option, modules that read a key
  -V, --version             the version

Exit codes  0 done, 1 unexpected, 2 configuration, 3 preflight, 10 non-finite, 11 hanging,
            12 reward failures, 13 storage, 14 resume refused, 15 not verified (ippo-verify),
            75 preempted and saved, 130 interrupted
"""
TOP_KEYS = ("name", "seed", "num_iterations", "num_epochs", "output_dir", "mode", "resume")
SHOWN = (
    "rollout.buffer_size",
    "rollout.max_new_tokens",
    "rollout.temperature",
    "algorithm.gamma",
    "algorithm.gae_lambda",
    "algorithm.mini_batch_size",
    "algorithm.ppo_epochs",
    "algorithm.entropy_coef",
    "algorithm.kl.reward.coef",
    "actor.learning_rate",
    "critic.learning_rate",
    "deepspeed.micro_batch_tokens",
    "checkpoint.every",
    "evaluation.every",
    "launch.processes",
)


@cache
def composed(*overrides: str) -> DictConfig:
    """The composed configuration; a second each, so that pages share them. Not to be changed."""
    return compose_node(overrides)


def comments(cls: type[Any]) -> dict[str, str]:
    """What stands behind each field of a schema class: at the end of its line, or in the lines after it."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        source = inspect.getsource(base)
        by_line = {
            token.start[0]: token.string.removeprefix("#").strip()
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                end = node.end_lineno or node.lineno
                found[node.target.id] = by_line.get(end) or " ".join(_following_comments(source, by_line, end))
    return found


def _following_comments(source: str, by_line: Mapping[int, str], end: int) -> Iterator[str]:
    """The comments of the whole lines after a line."""
    for number, line in enumerate(source.splitlines()[end:], end + 1):
        if not line.strip().startswith("#"):
            return
        yield by_line[number]


def hints(cls: type[Any]) -> dict[str, Any]:
    """Each field's type, its constraint included, in the order of the classes that it comes from."""
    return {name: remove_marks(hint) for name, hint in get_type_hints(cls, include_extras=True).items()}


def spelled(hint: Any) -> str:
    """A type with its constraint in words."""
    if get_origin(hint) is Annotated:
        said = str(constraint_from_hint(hint) or "")
        return spelled(get_args(hint)[0]) + (f" ({said})" if said else "")
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(spelled(part) for part in get_args(hint))
    if get_origin(hint) is list:
        return f"list[{spelled(*get_args(hint))}]"
    if hint is Any:
        return "str or list or None"
    return {type(None): "None"}.get(hint) or (hint.__name__ if isinstance(hint, type) else str(hint))


def ordered_groups() -> dict[str, list[str]]:
    """The groups with a schema, in the order of `Config`."""
    found = config_groups()
    return {field.name: found[field.name] for field in fields(schema.Composition) if field.name in found}


@cache
def default_choice(group: str) -> str:
    listed = OmegaConf.load(config_dir() / "config.yaml").defaults
    return next((str(entry[group]) for entry in listed if not isinstance(entry, str) and group in entry), "")


FITTED = " (fits a smaller buffer)"


# Defaults of `rollout=vllm` that `algorithm.ratio_base` decides; here: policy.
WITH_POLICY_RATIO = {"recompute_logprobs": True, "max_sampler_gap": 0.5}


def shown(value: Any) -> str:
    if isinstance(value, str) and (preset := re.match(r"\$\{fit_mini_batch:(\d+),", value)):
        return preset[1] + FITTED
    if isinstance(value, str) and (resolver := re.match(r"\$\{(\w+):", value)) and resolver[1] in WITH_POLICY_RATIO:
        value = WITH_POLICY_RATIO[resolver[1]]
    text = "null" if value is None else str(getattr(value, "value", value)).replace("\n", "\\n")
    return {"True": "true", "False": "false"}.get(text, text)


def help_text() -> str:
    lines = [HELP_HEAD.rstrip("\n")]
    for group, options in ordered_groups().items():
        first = default_choice(group)
        ordered = [first, *(option for option in options if option != first)] if first else options
        lines += _folded_columns(f"  {group:<12}", " | ".join(ordered))
    lines.append(HELP_TAIL.rstrip("\n"))
    node = composed()
    for key in (*TOP_KEYS, *SHOWN):
        group, _, leaf = key.rpartition(".")
        value = shown(OmegaConf.select(node, key))
        lines += _folded_columns(f"  {key:<30}{value:<12}", _comment(node, group, leaf))
    return "\n".join(lines) + "\n" + HELP_END


def _folded_columns(left: str, right: str) -> list[str]:
    """A name, and what it means beside it, over as many lines of a terminal as that takes."""
    first, *others = textwrap.wrap(right, WIDTH - len(left), break_on_hyphens=False)
    return [left + first, *(" " * len(left) + line for line in others)]


def help_keys() -> str:
    """What `--help GROUP` and `--help KEY` read: options, keys, and the other projects' names."""
    peers = {
        theirs: f"{answer.rule}; {answer.remedy}"
        for project in reversed(read_projects().values())
        for theirs, answer in project.keys.items()
    }
    keys = dict(_help_entries(schema.RunConfig, {"": composed()}, ""))
    _add_pretrained_defaults(keys, _help_entries(schema.RunConfig, {"": composed("actor=full")}, ""))
    found: dict[str, dict[str, str]] = {}
    for group, options in ordered_groups().items():
        first = default_choice(group)
        ordered = [first, *(option for option in options if option != first)] if first else options
        found[group] = {option: _first_comment(config_dir() / group / f"{option}.yaml") for option in ordered}
        by_class: dict[type[Any], dict[str, Any]] = {}
        for option in ordered:
            node = composed(f"{group}={option}")[group]
            by_class.setdefault(schema_of(group, node), {})[option] = node
        for cls, nodes in by_class.items():
            entries = _help_entries(cls, nodes, f"{group}.")
            for key, entry in entries:
                _add_entry(keys, key, entry, list(nodes))
            if (config_dir() / "base" / "by_actor" / group).is_dir():
                pretrained = {option: composed("actor=full", f"{group}={option}")[group] for option in nodes}
                _add_pretrained_defaults(keys, _help_entries(cls, pretrained, f"{group}."))
    keys |= {key: _method_entry(key, one) for key, one in method_keys().items()}
    agent = _help_entries(schema.AgentPromptConfig, {}, "task.agents.NAME.")
    keys |= dict(agent)
    for entry in keys.values():
        for defaults in (entry["defaults"], entry["pretrained"]):
            if len({value for value, _ in defaults}) == 1:
                defaults[:] = [[defaults[0][0], []]]
        if entry["pretrained"] == entry["defaults"]:
            entry["pretrained"] = []
    experiments = {file.stem: _first_comment(file) for file in sorted((config_dir() / "experiment").glob("*.yaml"))}
    agents = {
        option: [str(name) for name in composed(f"task={option}").task.agents] for option in ordered_groups()["task"]
    }
    return (
        json.dumps(
            {
                "groups": found,
                "experiments": experiments,
                "agents": agents,
                "keys": keys,
                "peers": peers,
                "metrics": ALL_METRICS,
            },
            indent=0,
            ensure_ascii=False,
        )
        + "\n"
    )


class MethodKey(NamedTuple):
    """A key of a method that is an entry point."""

    hint: Any
    default: str
    meaning: str


def method_keys() -> dict[str, MethodKey]:
    """The keys below `algorithm.advantage_args`, by full name."""
    return {
        f"algorithm.advantage_args.{field.name}": MethodKey(
            hints(method.Keys)[field.name],
            shown(field.default),
            f"advantage={name}: {comments(method.Keys)[field.name]}",
        )
        for name, method in METHODS.items()
        for field in fields(method.Keys)
    }


def _method_entry(key: str, one: MethodKey) -> dict[str, Any]:
    return {
        "type": spelled(one.hint),
        "meaning": one.meaning,
        "values": _values_of(one.hint),
        "defaults": [[one.default, []]],
        "pretrained": [],
        "options": [],
        "others": [],
        "peers": _peer_names(key),
        "readers": [],
    }


def _method_table() -> list[str]:
    """The table of keys of methods that are entry points."""
    lines = ["### Keys of `advantage_args`", "", "| key | type | default | meaning |", "|---|---|---|---|"]
    for key, one in method_keys().items():
        cells = [f"`{key.removeprefix('algorithm.')}`", _short_type(one.hint), f"`{one.default}`", _cell(one.meaning)]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _add_entry(keys: dict[str, dict[str, Any]], key: str, entry: dict[str, Any], options: list[str]) -> None:
    """Add the entry of a key; another meaning or other values are listed by option."""
    known = keys.setdefault(key, entry)
    if known is entry:
        entry["options"] = options
        return
    known["defaults"] += entry["defaults"]
    if any(known[part] != entry[part] for part in ("type", "meaning", "values")):
        known["others"].append({part: entry[part] for part in ("type", "meaning", "values")} | {"options": options})
    else:
        known["options"] += options


def _add_pretrained_defaults(keys: dict[str, dict[str, Any]], entries: list[tuple[str, dict[str, Any]]]) -> None:
    """Add the defaults of compositions with a pretrained actor."""
    for key, entry in entries:
        keys[key]["pretrained"] += entry["defaults"]


def _help_entries(cls: type[Any], nodes: dict[str, Any], prefix: str) -> list[tuple[str, dict[str, Any]]]:
    """Each key of a class with its type, allowed values, defaults by option, and other projects' names."""
    entries: list[tuple[str, dict[str, Any]]] = []
    notes = comments(cls)
    for leaf, hint in hints(cls).items():
        if leaf in ("agents", "kind") or (cls is AgentConfig and leaf in PER_AGENT):
            continue
        if isinstance(hint, type) and is_dataclass(hint):
            inner = {name: node[leaf] for name, node in nodes.items()}
            entries += _help_entries(hint, inner, f"{prefix}{leaf}.")
            continue
        by_value: dict[str, list[str]] = {}
        for option, node in nodes.items():
            by_value.setdefault(shown(_container(node)[leaf]), []).append(option)
        entry = {
            "type": spelled(hint),
            "meaning": notes[leaf],
            "values": _values_of(hint),
            "defaults": [[value, [option for option in options if option]] for value, options in by_value.items()],
            "pretrained": [],
            "options": [],
            "others": [],
            "peers": _peer_names(f"{prefix}{leaf}"),
            "readers": readers_by_field().get(f"{key_readers.owners(cls)[leaf]}.{leaf}", []),
        }
        entries.append((f"{prefix}{leaf}", entry))
    return entries


@cache
def readers_by_field() -> dict[str, list[str]]:
    """The modules that read each field of a schema class, such as `training/trainer`, without the schema itself."""
    return key_readers.readers_by_field(ROOT / "src" / "ippo_cli")


def _values_of(hint: Any) -> list[str]:
    """The values of an enumeration, or the texts that are known."""
    if isinstance(constraint := constraint_from_hint(hint), OneOf):
        return list(constraint.choices)
    if hint is bool:
        return ["true", "false"]
    kinds = [part for part in (hint, *get_args(hint)) if isinstance(part, type) and issubclass(part, Enum)]
    return [str(member.value) for member in kinds[0]] if kinds else []


def _peer_names(key: str) -> list[str]:
    """Names that other projects have for a key."""
    return [
        f"{theirs} ({name})"
        for name, project in read_projects().items()
        for theirs, answer in project.keys.items()
        if answer.kind is SuggestionKind.use and _names_key(answer.text, key)
    ]


def _names_key(text: str, key: str) -> bool:
    """Whether an answer names a key; in brackets it explains, and a key without a dot may be a word."""
    text = text.replace("<name>", "NAME")
    text = text if "." in key else re.sub(r"\([^()]*\)", "", text)
    return re.search(rf"(?<![\w.]){re.escape(key)}(?![\w.])", text) is not None


def _first_comment(file: Path) -> str:
    """What a YAML file says of itself in its first comment."""
    lines = [line for line in file.read_text().splitlines() if line.startswith("#") and "@package" not in line]
    return lines[0].lstrip("# ") if lines else ""


def _comment(node: DictConfig, group: str, leaf: str) -> str:
    cls = {"": schema.RunConfig, "algorithm.kl.reward": schema.KlRewardConfig}.get(group)
    cls = cls or schema_of(group, node[group])
    return comments(cls)[leaf]


def config_page() -> str:
    lines = [
        "# Configuration",
        "",
        "Generated by `scripts/docs.py` from `src/ippo_cli/config/schema/` and `conf/`.",
        "",
        "A table has the values of the group's default option, else of the option named like its kind, else of the",
        "first option in its heading. *Other values* lists what other options set instead.",
        "",
        "Values of one agent: `task.agents.<name>.<group>.<key>`, for all keys of `actor` and `critic`, and for",
    ]
    for group, cls in KEYS_PER_AGENT.items():
        lines += [f"{' '.join(f'`{field.name}`' for field in fields(cls))} of `{group}`,"]
    lines[-1] = lines[-1].rstrip(",") + "."
    lines += ["`task.agents.<name>.actor=` and `.critic=` choose another kind for one agent.", ""]
    lines += ["## Top level", ""]
    lines += _table([(key, {"": composed()}) for key in group_keys(schema.RunConfig)], "")
    for group, options in ordered_groups().items():
        lines += [f"## `{group}=`", "", *_group(group, {name: composed(f"{group}={name}")[group] for name in options})]
        lines += _method_table() if group == "algorithm" else []
    lines += by_actor()
    lines += [
        "## One agent: `task.agents.<name>`",
        "",
        *_table([(key, {}) for key in group_keys(schema.AgentConfig)], ""),
    ]
    return "\n".join(lines).rstrip() + "\n"


class Key(NamedTuple):
    """A row of a table. Equal keys of several classes are the same row."""

    name: str
    type: str
    meaning: str


def group_keys(cls: type[Any], prefix: str = "") -> list[Key]:
    """The keys of a class, those of nested classes included."""
    keys: list[Key] = []
    notes = comments(cls)
    for leaf, hint in hints(cls).items():
        if leaf == "agents" or (cls is AgentConfig and leaf in PER_AGENT):
            keys.append(Key(f"{prefix}{leaf}", "", notes[leaf] or "the named agents"))
        elif isinstance(hint, type) and is_dataclass(hint):
            keys += group_keys(hint, f"{prefix}{leaf}.")
        else:
            keys.append(Key(f"{prefix}{leaf}", _short_type(hint), notes[leaf]))
    return keys


def _short_type(hint: Any) -> str:
    """A type and its constraint in few characters, such as `int >= 1 or null`."""
    if get_origin(hint) is Annotated:
        limit = str(constraint_from_hint(hint) or "")
        for words, sign in (("at least ", "\u2265 "), ("above ", "> ")):
            limit = re.sub(f"^{words}", sign, limit)
        return f"{_short_type(get_args(hint)[0])} {limit.replace('2147483647', '2^31-1')}".rstrip()
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(sorted(map(_short_type, get_args(hint)), key="null".__eq__))
    if get_origin(hint) is list:
        return f"list of {_short_type(*get_args(hint))}"
    if get_origin(hint) is dict or hint is dict:
        return "mapping"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "choice"
    return "str, list or null" if hint is Any else {type(None): "null"}.get(hint) or hint.__name__


def _group(group: str, nodes: dict[str, Any]) -> list[str]:
    """The kinds of a group, a table for each set of options with the same keys, and the values of other options."""
    by_class: dict[type[Any], list[str]] = {}
    by_key: dict[Key, dict[str, Any]] = {}
    for option, node in nodes.items():
        by_class.setdefault(schema_of(group, node), []).append(option)
        for key in group_keys(schema_of(group, node)):
            by_key.setdefault(key, {})[option] = node
    lines: list[str] = []
    for cls, options in by_class.items():
        names = ", ".join(f"`{name}`" + (" (default)" if name == default_choice(group) else "") for name in options)
        kinds = sorted({_kind(nodes[name]) for name in options} - {"", *options})
        kind = f", kind `{'`, `'.join(kinds)}`" if kinds else ""
        lines += _folded_item(f"- {names}{kind}: {(cls.__doc__ or '').splitlines()[0]}".split(" "), " ")
    lines.append("")
    by_options: dict[tuple[str, ...], list[tuple[Key, dict[str, Any]]]] = {}
    for key, having in by_key.items():
        by_options.setdefault(tuple(having), []).append((key, having))
    for options, rows in sorted(by_options.items(), key=lambda entry: -len(entry[0])):
        if len(by_options) > 1:
            lines += [f"### {_heading(options, nodes)}", ""]
        lines += _table(rows, group)
    return lines + _other_values(group, by_key, nodes)


def _heading(options: tuple[str, ...], nodes: dict[str, Any]) -> str:
    if len(options) == len(nodes):
        return "All options"
    kinds = dict.fromkeys(_kind(nodes[option]) for option in options)
    names, word = (options, "") if len(options) < 5 else (kinds, "Kinds " if len(kinds) > 1 else "Kind ")
    return word + ", ".join(f"`{name}`" for name in names)


def _kind(node: Any) -> str:
    return shown(node["kind"]) if "kind" in node else ""


def _standard(group: str, nodes: dict[str, Any]) -> str:
    """The option whose values a table shows."""
    named_like_kind = (name for name, node in nodes.items() if _kind(node) == name)
    return default_choice(group) if default_choice(group) in nodes else next(named_like_kind, next(iter(nodes)))


def format_value(node: Any, name: str) -> str:
    """The value of a key as it is written, not resolved."""
    return shown(reduce(getitem, name.split("."), _container(node)))


def _container(node: Any) -> Any:
    """Plain values of a node; kept by the node's identity, since the hash of a node is that of its text."""
    if id(node) not in _containers:
        _containers[id(node)] = node, OmegaConf.to_container(node)
    return _containers[id(node)][1]


_containers: dict[int, tuple[Any, Any]] = {}


def _other_values(group: str, by_key: dict[Key, dict[str, Any]], nodes: dict[str, Any]) -> list[str]:
    """The values that differ from those in the tables, by option."""
    values: dict[str, list[str]] = {}
    fitted = False
    for key, having in by_key.items():
        if key.name not in ("agents", "kind"):
            usual = format_value(having[_standard(group, having)], key.name)
            for option, node in having.items():
                if (value := format_value(node, key.name)) != usual:
                    values.setdefault(option, []).append(f"`{key.name}={value.removesuffix(FITTED)}`")
                    fitted |= value.endswith(FITTED)
    if not values:
        return []
    lines = ["### Other values", ""]
    if fitted:
        lines += ["`mini_batch_size` fits a smaller `rollout.buffer_size`.", ""]
    for option in nodes:
        if option in values:
            lines += _folded_item([f"- `{option}`:", *(f"{value}," for value in values[option])], " ")
            lines[-1] = lines[-1].rstrip(",")
    return [*lines, ""]


def _folded_item(parts: list[str], between: str) -> list[str]:
    """An item of a list, folded between its parts at a page's width."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) < PAGE_WIDTH:
            lines[-1] += between + part
        else:
            lines += textwrap.wrap(
                part,
                PAGE_WIDTH,
                initial_indent="  ",
                subsequent_indent="  ",
                break_on_hyphens=False,
                break_long_words=False,
            )
    return lines


def by_actor() -> list[str]:
    """Defaults of other groups that differ between `actor=tiny` and `actor=full`.

    Without values of `actor` that other groups repeat: its dtype depends on this machine.
    """
    lines = [
        "## Defaults that depend on `actor=`",
        "",
        "The tables above show values for `actor=tiny`.",
        "",
        "| key | `actor=tiny` (default) | `actor=full` |",
        "|---|---|---|",
    ]
    rows: dict[str, str] = {}
    for critic in ("separate", "value_head"):
        tiny, full = (
            dict(iter_leaves(OmegaConf.to_container(composed(f"critic={critic}", f"actor={actor}"), resolve=True)))
            for actor in ("tiny", "full")
        )
        nodes = dict(iter_leaves(OmegaConf.to_container(composed(f"critic={critic}", "actor=full"), resolve=False)))
        repeated = {key for key, node in nodes.items() if str(node).startswith("${actor.")}
        for key in sorted((tiny.keys() & full.keys()) - repeated):
            if tiny[key] != full[key] and not key.startswith(("actor.", "task.", "hydra.")):
                rows[key] = f"| `{key}` | `{shown(tiny[key])}` | `{shown(full[key])}` |"
    return [*lines, *rows.values(), ""]


def _table(rows: list[tuple[Key, dict[str, Any]]], group: str) -> list[str]:
    """A row per key, with its value in the standard one of the options that have it. Long values follow the table."""
    with_values = any(nodes for _, nodes in rows)
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"] if with_values else KEYS_ALONE[:]
    long: list[str] = []
    for key, nodes in rows:
        cell = ""
        if key.name == "kind" and len(nodes) > 1:
            cell = "by option"
        elif nodes and key.type:
            value = format_value(nodes[_standard(group, nodes)], key.name)
            cell = f"`{_bars(value)}`"
            if len(cell) > VALUE_WIDTH:
                long += [f"Default of `{key.name}`:", "", "```text", *value.split("\\n"), "```", ""]
                cell = "below"
        cells = [f"`{key.name}`", key.type, *([cell] if with_values else []), _cell(key.meaning)]
        lines.append(re.sub(" +", " ", f"| {' | '.join(cells)} |"))
    return [*lines, "", *long]


PAGE_WIDTH = 120
VALUE_WIDTH = 50
KEYS_ALONE = ["| key | type | meaning |", "|---|---|---|"]


def _bars(text: str) -> str:
    """Text whose bars do not end a cell of a table."""
    return text.replace("|", "\\|")


def _cell(text: str) -> str:
    """Text of a cell: its bars end no cell, and what is in angle brackets is no HTML."""
    outside = re.split(r"(`[^`]*`)", _bars(text))
    return "".join(part if part.startswith("`") else re.sub(r"<(?=[a-zA-Z/])", r"\\<", part) for part in outside)


def metrics_page() -> str:
    lines = [
        "# Metrics",
        "",
        "Generated by `scripts/docs.py` from `src/ippo_cli/reporting/metrics.py`.",
        "",
        "One JSON object per iteration in `metrics.jsonl`, and the same names in trackers. Keys below `time/`",
        "and `perf/` depend on the machine; all others are the same whenever a run is repeated or resumed.",
        "",
        "| key | meaning |",
        "|---|---|",
    ]
    return "\n".join(lines + [f"| `{key}` | {_cell(text)} |" for key, text in ALL_METRICS.items()]) + "\n"


def migrating_page() -> str:
    lines = [
        "# Migrating from another project",
        "",
        "Generated by `scripts/docs.py` from `src/ippo_cli/config/peers.yaml`.",
        "Typing one of the other project's keys gives an error with the same answer.",
        "",
    ]
    for name, project in read_projects().items():
        lines += [f"## {name}", ""]
        for run, command in project.runs:
            lines += [f"{run}:", "", "```", *_folded(command), "```", ""]
        lines += ["| there | here |", "|---|---|"]
        lines += [f"| `{theirs}` | {_cell(_answer(answer))} |" for theirs, answer in project.keys.items()] + [""]
    return "\n".join(lines).rstrip() + "\n"


def _answer(answer: Suggestion) -> str:
    return f"not here, because {answer.text}" if answer.kind is SuggestionKind.absent else answer.text


def _folded(command: str) -> list[str]:
    """A command over lines of a page's width."""
    lines = textwrap.wrap(command, 110, subsequent_indent="  ", break_on_hyphens=False)
    return [f"{line} \\" for line in lines[:-1]] + lines[-1:]


CORRIDOR = (
    "types.py",
    "tasks",
    "rollout",
    "rewards",
    "agents",
    "algorithms",
    "formulas",
    "models",
    "engine",
    "training",
    "planning",
    "runs",
    "reporting",
    "report",
    "forecast",
    "diagnosis",
    "catalog",
    "evaluation",
    "sweeps",
    "controls",
    "benchmark",
    "pilot",
    "user_code",
    "processes",
    "config",
    "compose",
    "verification",
    "cli",
    "api",
)
# Files that a reader of their folder opens first; of the other files the folder's line is enough.
ROLES = (
    "tasks/environment.py",
    "tasks/protocols.py",
    "tasks/task.py",
    "rollout/collect.py",
    "rollout/rows.py",
    "rollout/engine.py",
    "rewards/contract.py",
    "rewards/score.py",
    "agents/agent.py",
    "agents/learner.py",
    "agents/team.py",
    "models/layout.py",
    "models/packing.py",
    "engine/distributed.py",
    "engine/zero_memory.py",
    "training/trainer.py",
    "training/experience.py",
    "training/targets.py",
    "training/update.py",
    "training/checkpoint.py",
    "training/process.py",
    "planning/prepare.py",
    "planning/memory.py",
    "runs/records.py",
    "reporting/metrics.py",
    "config/checks.py",
    "config/algorithm_checks.py",
    "config/applicability.py",
    "config/marks.py",
    "config/schema/registry.py",
    "compose/load.py",
    "compose/mistakes.py",
)
TOUR = (
    "<!-- tour: written by scripts/docs.py from the first line of folders and of some files -->\n",
    "<!-- end of tour -->\n",
)


def architecture_page() -> str:
    """`docs/architecture.md` with its tour of the code renewed."""
    before, rest = (ROOT / "docs/architecture.md").read_text().split(TOUR[0])
    after = rest.split(TOUR[1])[1]
    lines = ["| where | what |", "|---|---|"]
    for place in CORRIDOR:
        path = ROOT / "src" / "ippo_cli" / place
        lines += [_tour_line(path)] if path.is_file() else _tour_of(path)
    return before + TOUR[0] + "\n".join(lines) + "\n" + TOUR[1] + after


def _tour_of(folder: Path) -> list[str]:
    """The lines of a package: itself, its files with a role, and the packages in it."""
    files = (file for file in folder.glob("*.py") if file.name == "__init__.py" or _source_path(file) in ROLES)
    modules = sorted(files, key=lambda file: (file.name != "__init__.py", file.name))
    packages = sorted(file.parent for file in folder.glob("*/__init__.py"))
    return [_tour_line(file) for file in modules] + [line for package in packages for line in _tour_of(package)]


def _source_path(file: Path) -> str:
    return file.relative_to(ROOT / "src" / "ippo_cli").as_posix()


def _tour_line(file: Path) -> str:
    name = Path(_source_path(file))
    shown = f"**`{name.parent}/`**" if file.name == "__init__.py" else f"`{name}`"
    return f"| {shown} | {(ast.get_docstring(ast.parse(file.read_text())) or '').splitlines()[0]} |"


PAGES = {
    "docs/architecture.md": architecture_page,
    "src/ippo_cli/cli/help.txt": help_text,
    "src/ippo_cli/cli/help_keys.json": help_keys,
    "docs/config.md": config_page,
    "docs/metrics.md": metrics_page,
    "docs/migrating.md": migrating_page,
}


def main() -> int:
    stale = [path for path, page in PAGES.items() if not (ROOT / path).exists() or (ROOT / path).read_text() != page()]
    if "--check" in sys.argv:
        print("\n".join(f"out of date: {path}" for path in stale))
        return 1 if stale else 0
    for path in stale:
        (ROOT / path).write_text(PAGES[path]())
        print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
