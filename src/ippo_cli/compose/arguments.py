"""Normalisation of command-line arguments for Hydra."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from ippo_cli.compose.path_keys import AGENTS_KEY, PATH_PATTERN, TEXT_KEYS, escape_interpolations, make_absolute
from ippo_cli.config.commands import PATH_KEYS, expand_home, last_value, parse_path, quote_for_shell
from ippo_cli.config.commands import quote_for_hydra as _literal
from ippo_cli.config.doors import CODE_CHOICES, is_code
from ippo_cli.config.errors import ConfigError, combine_errors
from ippo_cli.config.marked_keys import is_mapping_key

SWEEP_FLAGS = ("-m", "--multirun")
SWEEP_MODE = "hydra.mode=MULTIRUN"
RUN_HYDRA_KEYS = ("hydra.searchpath", "hydra.callbacks", "hydra.job.env_")
SWEEP_HYDRA_KEYS = ("hydra/launcher", "hydra.launcher", "hydra/sweeper", "hydra.sweep", "hydra.job.", "hydra.mode")
"""Prefixes of Hydra keys that have an effect; hydra.sweep also covers `hydra.sweeper`."""
FOLDER_FLAGS = ("--config-dir", "-cd")
REMOTE_TRACKERS = ("wandb", "mlflow", "trackio")  # in the order of the option wandb_mlflow_trackio
LAUNCHER_FLAGS = ("--local_rank", "--local-rank")  # added by the deepspeed launcher
YAML_FILES = (".yaml", ".yml")
# Hydra keys that would change the run's folder, and their remedies.
UNSUPPORTED_HYDRA_KEYS = {
    "hydra.run.dir": "set the folder with output_dir= and name=",
    "hydra.output_subdir": "Hydra writes no files; set the folder with output_dir= and name=",
    "hydra.job.chdir": "the working directory stays unchanged",
}


def normalize_arguments(typed: Sequence[str]) -> list[str]:
    """Convert arguments to the form that Hydra parses. Raises `ConfigError`.

    Moves flags to the front, because Hydra rejects overrides on both sides of a flag; converts user folders and files
    to a search path, which is saved with the run's overrides; makes paths absolute; creates agents; expands the kind of
    one agent's actor or critic; quotes values that Hydra's grammar cannot parse, such as `{question}`.
    """
    _check_shell_splits(typed)
    _check_one_experiment(typed)
    typed = [part for text in typed for part in _expand_code(text)]
    remaining, folders = _split_config_dirs([text for text in typed if not text.startswith(LAUNCHER_FLAGS)])
    resumed = last_value(remaining, "resume") not in (None, "never", "auto", "must")  # may be the folder of a sweep
    sweeps = resumed or bool({*SWEEP_FLAGS, SWEEP_MODE} & {*remaining})
    flags = [text for text in remaining if not is_override(text)]
    overrides: list[str] = []
    for text in (text for text in remaining if is_override(text)):
        key = text.partition("=")[0].lstrip("+~")
        if text.startswith("~") and not key.startswith(f"{AGENTS_KEY}."):
            raise ConfigError(
                text,
                "cannot be deleted",
                f"set another value: {key}=VALUE",
            )
        if key in UNSUPPORTED_HYDRA_KEYS:
            raise ConfigError(text, "is not supported", UNSUPPORTED_HYDRA_KEYS[key])
        _check_has_effect(text, key, sweeps=sweeps)
        if is_mapping_key(key):
            text = "++" + text.lstrip("+")  # user-defined subkeys are in no schema
        text = _normalize_choice(text)
        text, files = _resolve_option_files(text)
        folders += files
        overrides.append(quote_override(_resolve_override_paths(text)))
        if sweeps and overrides[-1] != text and "," in _strip_quoted(text.partition("=")[2]):
            _check_one_value(text)
    return [*flags, *map(_expand_agent_kind, _create_agents(merge_search_paths(overrides, folders)))]


def _expand_code(text: str) -> list[str]:
    """Expand `rollout=my.py:Engine` to `rollout=engine rollout.engine=my.py:Engine`, and code in a list of trackers."""
    group, _, value = text.partition("=")
    if group not in CODE_CHOICES:
        return [text]
    key, door = CODE_CHOICES[group]
    is_list = group == "tracker" and re.fullmatch(r"\[.*\]", value) is not None
    names = [part.strip().strip("'\"") for part in (value[1:-1] if is_list else value).split(",")]
    code = [name for name in names if not _is_option(group, name) and is_code(door.group, name)]
    if not code or (not is_list and len(code) < len(names)):
        return [text]
    if is_list and len(code) > 1:
        raise ConfigError(text, "has several trackers of yours", "write one that calls the others")
    others = [name for name in names if name not in code]
    return [f"{group}=[{','.join(others)}]" if others else f"{group}={door.option}", f"{key}={','.join(code)}"]


def _is_option(group: str, name: str) -> bool:
    """Whether an option of this program has this name."""
    from ippo_cli.compose.load import config_dir

    return (config_dir() / group / f"{name}.yaml").is_file()


def _check_one_experiment(typed: Sequence[str]) -> None:
    """Raise `ConfigError` for two experiments, which Hydra cannot compose."""
    found = [text for text in typed if re.match(r"\+?experiment=", text)]
    if len(found) > 1:
        raise ConfigError(" ".join(found), "are several experiments, and a run has one", f"keep one: {found[-1]}")


def _check_has_effect(text: str, key: str, *, sweeps: bool) -> None:
    """Raise `ConfigError` for a Hydra key without effect."""
    if not key.startswith(("hydra.", "hydra/")) or key.startswith(RUN_HYDRA_KEYS):
        return
    if key.startswith(SWEEP_HYDRA_KEYS):
        if not sweeps:
            raise ConfigError(text, "has an effect on sweeps only", "add -m, or remove it")
        return
    raise ConfigError(text, "is a Hydra key that has no effect in this program", "remove it")


def open_bracket_error(text: str, value: str) -> ConfigError | None:
    """The error of a function of a sweep, such as `range(1,3`, without its closing bracket; None for other values."""
    missing = value.count("(") - value.count(")")
    if missing <= 0 or not re.match(r"\w+\(", value):
        return None
    return ConfigError(text, "has an unclosed bracket", f"use '{text.partition('=')[0]}={value}{')' * missing}'")


def _check_one_value(text: str) -> None:
    """Raise `ConfigError` for an unparsable value with commas in a sweep: it may be one value or several."""
    key, _, value = text.partition("=")
    if (unclosed := open_bracket_error(text, value)) is not None:
        raise unclosed
    parts = ",".join(f'"{part.strip()}"' for part in value.split(","))
    if "'" not in value and '"' not in value and not value.startswith(("[", "{")):
        raise ConfigError(
            text,
            "has commas, and with -m it may be one value or several",
            f"quote each value: {quote_for_shell(f'{key}={parts}')}, "
            f"or all as one: {quote_for_shell(f'{key}={_literal(value)}')}",
        )


def _strip_quoted(value: str) -> str:
    return re.sub(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\[[^\]]*\]|\([^)]*\)""", "", value)


def _check_shell_splits(typed: Sequence[str]) -> None:
    """Raise `ConfigError` for a value split by the shell: `KEY={a:1,b:2}` without quotes is two arguments."""
    values: dict[str, list[str]] = {}
    for text in typed:
        key, equals, value = text.partition("=")
        if equals and not key.startswith("-"):
            values.setdefault(key, []).append(value)
    errors = [
        ConfigError(f"{key}={parts[0]}", "was split by the shell", f"quote it: '{key}={{{','.join(parts)}}}'")
        for key, parts in values.items()
        if (len(parts) > 1 and any(map(_is_unbalanced, parts))) or re.match(r"\w+:\[", parts[0])
    ]
    if errors:
        raise combine_errors(errors)


def _is_unbalanced(value: str) -> bool:
    """Whether brackets outside quotes do not match."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", value)
    return any(bare.count(opening) != bare.count(closing) for opening, closing in ("[]", "{}", "()"))


def _normalize_choice(text: str) -> str:
    """Add the plus of `+experiment=`, and replace a list of trackers by the option with all of them."""
    key, equals, value = text.partition("=")
    if equals and key == "experiment":
        return f"+{text}"
    if key != "tracker" or not re.fullmatch(r"\[.*\]", value):
        return text
    names = {part.strip().strip("'\"") for part in value[1:-1].split(",")}
    unknown = names - {"tensorboard", *REMOTE_TRACKERS}
    if unknown or not names:
        known = " ".join(("tensorboard", *REMOTE_TRACKERS))
        raise ConfigError(text, "is not a list of trackers", f"choose from {known}, or use tracker=none")
    remote = "_".join(name for name in REMOTE_TRACKERS if name in names)
    return f"tracker={remote or 'tensorboard'}"  # tracker.tensorboard also enables event files with other trackers


def _expand_agent_kind(text: str) -> str:
    """Expand `task.agents.low.critic=value_head` to `task.agents.low.critic.kind=value_head`."""
    return re.sub(rf"^(\+*{re.escape(AGENTS_KEY)}\.\w+\.(?:actor|critic))=(?=\w+(,\w+)*$)", r"\1.kind=", text)


def is_override(text: str) -> bool:
    """Whether an argument is an override, not a flag or a flag's value."""
    return not text.startswith("-") and ("=" in text or text.startswith(("+", "~")))


def quote_override(text: str) -> str:
    """Quote the value of an override if Hydra can parse it only with quotes."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if not is_override(text):
        return text
    parser = OverridesParser.create()
    key, _, value = text.partition("=")
    if key in PATH_KEYS:
        return text  # parsed by the commands, not by Hydra
    if re.fullmatch(rf"\+*{re.escape(AGENTS_KEY)}(\.\w+)?", key):
        return text  # parsed later, with specific errors
    for attempt in (text, f"{key}={_escape_quoted_keys(value)}", f"{key}={_literal(value)}"):
        try:
            parser.parse_override(attempt)
        except HydraException:
            continue
        return attempt
    return text


def _escape_quoted_keys(value: str) -> str:
    """Replace quoted keys of a mapping, which Hydra does not parse, by escaped ones: `{"a,b": 1}` by `{a\\,b: 1}`."""

    def escape(match: re.Match[str]) -> str:
        return f"{match[1]}{match[3].replace(',', chr(92) + ',')}:"

    return re.sub(r"""([{,]\s*)(["'])([\w.,\s]+)\2\s*:""", escape, value) if value.startswith("{") else value


def merge_search_paths(overrides: Sequence[str], places: Sequence[str] = ()) -> list[str]:
    """Merge all additions to the search path into one override at the end, because Hydra reads only the first."""
    from ippo_cli.compose.searchpath import SEARCH_PATH, search_path_entries

    if not places and sum(text.startswith(SEARCH_PATH) for text in overrides) < 2:
        return list(overrides)
    added = dict.fromkeys([*search_path_entries(overrides), *places])
    rest = [text for text in overrides if not text.startswith(SEARCH_PATH)]
    return [*rest, f"{SEARCH_PATH}[{','.join(map(_literal, added))}]"]


def _resolve_override_paths(text: str) -> str:
    """Make paths in an override absolute, and escape `${` in text values."""
    key, _, value = text.partition("=")
    if TEXT_KEYS.fullmatch(key) and (escaped := escape_interpolations(value)) != value:
        return f"{key}={escaped}"
    if value[:1] in ("'", '"') and value[-1:] == value[:1]:
        value = value[1:-1]
    if not PATH_PATTERN.fullmatch(key):
        return text
    if value.startswith("[") and value.endswith("]"):
        listed = _parse_list(text)
        return text if listed is None else f"{key}=[{','.join(map(_literal, make_absolute(key, listed)))}]"
    full = make_absolute(key, value)
    if full == value:  # a hub name, a module, a text, or a mistake that is reported later
        return text
    return f"{key}={full}" if re.fullmatch(r"[\w./:-]+", full) else f"{key}={_literal(full)}"


def _parse_list(text: str) -> list[str] | None:
    """Parse a list value as strings; None if it is not a list."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(text).value()
    except HydraException:
        return None
    return [str(part) for part in parsed] if isinstance(parsed, list) else None


def _split_config_dirs(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into the others and the absolute folders of `--config-dir`."""
    rest: list[str] = []
    folders: list[str] = []
    waiting = iter(typed)
    for text in waiting:
        flag, equals, value = text.partition("=")
        if flag in FOLDER_FLAGS:
            folders.append(value if equals else next(waiting, ""))
        else:
            rest.append(text)
    for folder in folders:
        if not folder or not expand_home(folder).is_dir():
            raise ConfigError(
                f"{FOLDER_FLAGS[0]}={folder}", "is not a folder", "use a folder with files such as task/mine.yaml"
            )
    return rest, [str(expand_home(folder).absolute()) for folder in folders]


def _resolve_option_files(text: str) -> tuple[str, list[str]]:
    """Convert `task=path/to/mine.yaml` to `task=mine` and the file's entry in the search path."""
    from ippo_cli.compose.load import config_dir
    from ippo_cli.compose.searchpath import search_path_entry

    key, _, value = text.partition("=")
    group = key.lstrip("+")
    parts = [str(parse_path(value))] if parse_path(value).is_file() else _split_options(value)
    if not any(part.endswith(YAML_FILES) for part in parts) or not (config_dir() / group).is_dir():
        return text, []
    names, files = [], []
    for part in parts:
        if not part.endswith(YAML_FILES):
            names.append(part)
            continue
        file = expand_home(part).absolute()
        if not file.is_file():
            raise ConfigError(f"{group}={part}", "is not a file", "use the path of a file or the name of an option")
        if not re.fullmatch(r"[\w.-]+", file.stem):
            raise ConfigError(
                f"{group}={part}", "has an invalid option name", "use letters, digits, '-' and '_' in the file name"
            )
        names.append(file.stem)
        # A file in a folder named after its group may start from other files of that folder.
        below = file.parent.name == group and file.suffix == ".yaml"
        files.append(search_path_entry(file.parent.parent) if below else search_path_entry(file, group))
    return f"{key}={','.join(names)}", files


def _split_options(value: str) -> list[str]:
    """Split options of a sweep, such as `a,b`."""
    return [part.strip().strip("'\"") for part in value.split(",")]


def _create_agents(overrides: list[str]) -> list[str]:
    """Insert overrides that create new agents before their values are set, in a form that keeps types.

    `task.agents={a: ..., b: ...}` replaces all agents of the task; `+task.agents.a.template=` adds one.
    """
    wanted = [text for text in overrides if text.lstrip("+").startswith(AGENTS_KEY) and _adds_agents(text)]
    existing = _existing_agents(overrides) if wanted else None
    if existing is None:
        return overrides
    created: dict[str, None] = {}
    removed: list[str] = []
    result: list[str] = []
    for text in overrides:
        key, _, value = text.partition("=")
        if text not in wanted:
            result.append(text)
        elif key.lstrip("+") == AGENTS_KEY:
            agents = _parse_agents(text, value)
            if not key.startswith("+"):
                removed = [f"~{AGENTS_KEY}.{name}" for name in existing]
            created |= dict.fromkeys(agents)
            result += [f"{AGENTS_KEY}.{leaf}={spelled}" for leaf, spelled in _format_leaves(agents)]
        else:
            name, _, rest = key.lstrip("+").removeprefix(f"{AGENTS_KEY}.").partition(".")
            created |= {} if name in existing else {name: None}
            whole = {} if rest else _parse_agents(text, f"{{{name}:{value}}}")
            bare = text if is_mapping_key(f"{AGENTS_KEY}.{name}.{rest}") else text.lstrip("+")
            result += [f"{AGENTS_KEY}.{leaf}={spelled}" for leaf, spelled in _format_leaves(whole)] or [bare]
    creation = f"++{AGENTS_KEY}={{{','.join(f'{name}:{{}}' for name in created)}}}"
    first = next((place for place, text in enumerate(result) if text.startswith(f"{AGENTS_KEY}.")), len(result))
    return [*result[:first], *removed, *([creation] if created else []), *result[first:]]


def _adds_agents(text: str) -> bool:
    """Whether an override may add agents; overrides created by `_create_agents` do not count."""
    key, _, value = text.partition("=")
    added = re.fullmatch(rf"\+{{1,2}}{re.escape(AGENTS_KEY)}\.\w+(\..+)?", key) is not None
    is_created = key == f"++{AGENTS_KEY}" and re.fullmatch(r"\{(\w+:\{\},?)+\}", value)
    return added or (key.lstrip("+") == AGENTS_KEY and not is_created)


def _existing_agents(overrides: Sequence[str]) -> list[str] | None:
    """The agents of the chosen task; None if composition fails, which is reported later."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from ippo_cli.compose.load import compose_node
    from ippo_cli.compose.searchpath import SEARCH_PATH

    choices = [text for text in overrides if text.startswith((SEARCH_PATH, "task=", "+experiment="))]
    try:
        return [str(name) for name in compose_node(choices).task.agents]
    except (ConfigError, HydraException, OmegaConfBaseException):
        return None


def _parse_agents(text: str, value: str) -> dict[str, Any]:
    """Parse the agents of `task.agents={...}`."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    example = """task.agents={solver:{template:"{question}"}}"""
    try:
        agents = OverridesParser.create().parse_override(f"{AGENTS_KEY}={value}").value()
    except HydraException as error:
        raise ConfigError(text, "cannot be parsed", f"put quotes around templates, such as '{example}'") from error
    named = agents if isinstance(agents, dict) else {}
    if not named or not all(isinstance(agent, dict) for agent in named.values()):
        raise ConfigError(text, "does not name agents with their templates", f"write '{example}'")
    return {str(name): agent for name, agent in named.items()}


def _format_leaves(agents: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in agents.items():
        if isinstance(value, dict):
            yield from _format_leaves(value, f"{prefix}{name}.")
        elif isinstance(value, str):
            is_text = TEXT_KEYS.fullmatch(f"{AGENTS_KEY}.{prefix}{name}")
            yield f"{prefix}{name}", _literal(escape_interpolations(value) if is_text else value)
        else:
            yield f"{prefix}{name}", str("null" if value is None else value)
