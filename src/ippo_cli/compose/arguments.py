"""What was typed, in the form in which Hydra takes it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ippo_cli.compose.path_keys import PATH_PATTERN, TEXT_KEYS, escape_interpolations, make_absolute
from ippo_cli.config.commands import PATH_KEYS, last_value, parse_path, quote_for_shell
from ippo_cli.config.commands import quote_for_hydra as _literal
from ippo_cli.config.errors import ConfigError, combine_errors

SWEEP_FLAGS = ("-m", "--multirun")
SWEEP_MODE = "hydra.mode=MULTIRUN"
RUN_HYDRA_KEYS = ("hydra.searchpath", "hydra.callbacks", "hydra.job.env_")
SWEEP_HYDRA_KEYS = ("hydra/launcher", "hydra.launcher", "hydra/sweeper", "hydra.sweep", "hydra.job.", "hydra.mode")
"""Keys of Hydra's that have an effect, by how they begin; sweepers are `hydra.sweeper`."""
FOLDER_FLAGS = ("--config-dir", "-cd")
REMOTE_TRACKERS = ("wandb", "mlflow")  # in the order in which the option of both is named
LAUNCHER_FLAGS = ("--local_rank", "--local-rank")  # what the deepspeed launcher adds
YAML_FILES = (".yaml", ".yml")
AGENTS_KEY = "task.agents"
# Hydra's keys that would move a run, and what to use instead.
UNSUPPORTED_HYDRA_KEYS = {
    "hydra.run.dir": "choose it with output_dir= and name=",
    "hydra.output_subdir": "Hydra writes nothing there; choose it with output_dir= and name=",
    "hydra.job.chdir": "the run stays where it was started",
}


FREE_KEYS = (
    r"(task\.(environment|dataset)_args|task\.columns|team\.groups|reward\.(parts|weights)"
    r"|(task\.agents\.\w+\.)?((actor|critic)\.(rank|alpha)_pattern|actor\.model_args))(\..+)?"
)
"""Keys below which others may be typed."""


def normalize_arguments(typed: Sequence[str]) -> list[str]:
    """Flags first, since Hydra refuses overrides on both sides of one; folders and files of one's own as a search
    path, so that they are kept with a run's other overrides; files and folders in full; agents that are added by
    typing them; the kind of one agent's actor or critic; and quotes around values that Hydra's grammar cannot read,
    such as `{question}`."""
    _check_shell_splits(typed)
    remaining, folders = _split_config_dirs([text for text in typed if not text.startswith(LAUNCHER_FLAGS)])
    resumed = last_value(remaining, "resume") not in (None, "never", "auto", "must")  # it may be a sweep
    sweeps = resumed or bool({*SWEEP_FLAGS, SWEEP_MODE} & {*remaining})
    flags = [text for text in remaining if not is_override(text)]
    overrides: list[str] = []
    for text in (text for text in remaining if is_override(text)):
        key = text.partition("=")[0].lstrip("+~")
        if text.startswith("~") and not key.startswith(f"{AGENTS_KEY}."):
            raise ConfigError(
                text,
                "cannot be deleted",
                f"give it another value, as {key}=VALUE",
            )
        if key in UNSUPPORTED_HYDRA_KEYS:
            raise ConfigError(text, "is not supported", UNSUPPORTED_HYDRA_KEYS[key])
        _check_has_effect(text, key, sweeps=sweeps)
        if re.fullmatch(FREE_KEYS, key):
            text = "++" + text.lstrip("+")  # keys of the user's choice, which no schema names
        text = _normalize_choice(text)
        text, files = _resolve_option_files(text)
        folders += files
        overrides.append(quote_override(_resolve_override_paths(text)))
        if sweeps and overrides[-1] != text and "," in _strip_quoted(text.partition("=")[2]):
            _check_one_value(text)
    return [*flags, *map(_expand_agent_kind, _create_agents(merge_search_paths(overrides, folders)))]


def _check_has_effect(text: str, key: str, *, sweeps: bool) -> None:
    """Raise `ConfigError` for a key of Hydra's that changes nothing here."""
    if not key.startswith(("hydra.", "hydra/")) or key.startswith(RUN_HYDRA_KEYS):
        return
    if key.startswith(SWEEP_HYDRA_KEYS):
        if not sweeps:
            raise ConfigError(text, "has an effect on sweeps only", "add -m, or leave it out")
        return
    raise ConfigError(text, "is Hydra's, and has no effect in this program", "leave it out")


def _check_one_value(text: str) -> None:
    """Raise `ConfigError` for a value of a sweep that Hydra cannot read and that has commas: one value, or several?"""
    key, _, value = text.partition("=")
    parts = ",".join(f'"{part.strip()}"' for part in value.split(","))
    if "'" not in value and '"' not in value and not value.startswith(("[", "{")):
        raise ConfigError(
            text,
            "has commas, and -m leaves open whether it is one value or several",
            f"quote each value: {quote_for_shell(f'{key}={parts}')}, "
            f"or all as one: {quote_for_shell(f'{key}={_literal(value)}')}",
        )


def _strip_quoted(value: str) -> str:
    return re.sub(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\[[^\]]*\]|\([^)]*\)""", "", value)


def _check_shell_splits(typed: Sequence[str]) -> None:
    """Raise `ConfigError` for a value that the shell took apart: `KEY={a:1,b:2}` without quotes is two arguments."""
    values: dict[str, list[str]] = {}
    for text in typed:
        key, equals, value = text.partition("=")
        if equals and not key.startswith("-"):
            values.setdefault(key, []).append(value)
    errors = [
        ConfigError(f"{key}={parts[0]}", "was taken apart by the shell", f"quote it: '{key}={{{','.join(parts)}}}'")
        for key, parts in values.items()
        if (len(parts) > 1 and any(map(_is_unbalanced, parts))) or re.match(r"\w+:\[", parts[0])
    ]
    if errors:
        raise combine_errors(errors)


def _is_unbalanced(value: str) -> bool:
    """Whether brackets outside of quotes do not match."""
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", value)
    return any(bare.count(opening) != bare.count(closing) for opening, closing in ("[]", "{}", "()"))


def _normalize_choice(text: str) -> str:
    """`experiment=` is written with a plus, and a list of trackers is the option that has them all."""
    key, equals, value = text.partition("=")
    if equals and key == "experiment":
        return f"+{text}"
    if key != "tracker" or not re.fullmatch(r"\[.*\]", value):
        return text
    names = {part.strip().strip("'\"") for part in value[1:-1].split(",")}
    unknown = names - {"tensorboard", *REMOTE_TRACKERS}
    if unknown or not names:
        known = " ".join(("tensorboard", *REMOTE_TRACKERS))
        raise ConfigError(text, "is no list of trackers", f"choose from {known}, or tracker=none alone")
    remote = "_".join(name for name in REMOTE_TRACKERS if name in names)
    return f"tracker={remote or 'tensorboard'}"  # tracker.tensorboard says whether its files are written beside them


def _expand_agent_kind(text: str) -> str:
    """`task.agents.low.critic=value_head` chooses for one agent what `critic=value_head` chooses for all."""
    return re.sub(rf"^(\+*{re.escape(AGENTS_KEY)}\.\w+\.(?:actor|critic))=(?=\w+(,\w+)*$)", r"\1.kind=", text)


def is_override(text: str) -> bool:
    """Whether an argument is one, and no flag nor a flag's value."""
    return not text.startswith("-") and ("=" in text or text.startswith(("+", "~")))


def quote_override(text: str) -> str:
    """The override with quotes around its value where only that can be read."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if not is_override(text):
        return text
    parser = OverridesParser.create()
    key, _, value = text.partition("=")
    if key in PATH_KEYS:
        return text  # the commands read these themselves
    if re.fullmatch(rf"\+*{re.escape(AGENTS_KEY)}(\.\w+)?", key):
        return text  # what is wrong with them is told when they are read
    for attempt in (text, f"{key}={_literal(value)}"):
        try:
            parser.parse_override(attempt)
        except HydraException:
            continue
        return attempt
    return text


def merge_search_paths(overrides: Sequence[str], places: Sequence[str] = ()) -> list[str]:
    """The overrides with all that they and `places` add to the search path in one, last: Hydra reads the first such
    override alone."""
    from ippo_cli.compose.searchpath import SEARCH_PATH, search_path_entries

    if not places and sum(text.startswith(SEARCH_PATH) for text in overrides) < 2:
        return list(overrides)
    added = dict.fromkeys([*search_path_entries(overrides), *places])
    rest = [text for text in overrides if not text.startswith(SEARCH_PATH)]
    return [*rest, f"{SEARCH_PATH}[{','.join(map(_literal, added))}]"]


def _resolve_override_paths(text: str) -> str:
    """The override with the absolute path of each file or folder that it names, and with `${` in texts as text."""
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
    if full == value:  # a name on the hub, a module, a text, or a mistake that is told later
        return text
    return f"{key}={full}" if re.fullmatch(r"[\w./:-]+", full) else f"{key}={_literal(full)}"


def _parse_list(text: str) -> list[str] | None:
    """The texts of a list that is typed as a value."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(text).value()
    except HydraException:
        return None
    return [str(part) for part in parsed] if isinstance(parsed, list) else None


def _split_config_dirs(typed: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments without folders of one's own, and these, in full."""
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
        if not folder or not Path(folder).expanduser().is_dir():
            raise ConfigError(f"{FOLDER_FLAGS[0]}={folder}", "is no folder", "give one that has, say, task/mine.yaml")
    return rest, [str(Path(folder).expanduser().absolute()) for folder in folders]


def _resolve_option_files(text: str) -> tuple[str, list[str]]:
    """`task=mine` for `task=path/to/mine.yaml`, and the file's entry in the search path."""
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
        file = Path(part).expanduser().absolute()
        if not file.is_file():
            raise ConfigError(f"{group}={part}", "is no file here", "give the path of one, or the name of an option")
        if not re.fullmatch(r"[\w.-]+", file.stem):
            raise ConfigError(
                f"{group}={part}", "cannot name an option", "name the file with letters, digits, '-' and '_'"
            )
        names.append(file.stem)
        # A file in a folder of its group's name may start from others that lie there.
        below = file.parent.name == group and file.suffix == ".yaml"
        files.append(search_path_entry(file.parent.parent) if below else search_path_entry(file, group))
    return f"{key}={','.join(names)}", files


def _split_options(value: str) -> list[str]:
    """The options of a list such as `a,b`, as a sweep has them."""
    return [part.strip().strip("'\"") for part in value.split(",")]


def _create_agents(overrides: list[str]) -> list[str]:
    """The overrides with agents that the task does not have made first, in a form that keeps their types.

    `task.agents={a: ..., b: ...}` names all agents, and those of the task give way; `+task.agents.a.template=` adds.
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
            result += [f"{AGENTS_KEY}.{leaf}={spelled}" for leaf, spelled in _format_leaves(whole)] or [
                text.lstrip("+")
            ]
    creation = f"++{AGENTS_KEY}={{{','.join(f'{name}:{{}}' for name in created)}}}"
    first = next(place for place, text in enumerate(result) if text.startswith(f"{AGENTS_KEY}."))
    return [*result[:first], *removed, *([creation] if created else []), *result[first:]]


def _adds_agents(text: str) -> bool:
    """Whether an override names agents that may be new; what `_create_agents` makes of one does not."""
    key, _, value = text.partition("=")
    added = re.fullmatch(rf"\+{{1,2}}{re.escape(AGENTS_KEY)}\.\w+(\..+)?", key) is not None
    return added or (key.lstrip("+") == AGENTS_KEY and not re.fullmatch(r"\{(\w+:\{\},?)+\}", value))


def _existing_agents(overrides: Sequence[str]) -> list[str] | None:
    """The agents of the chosen task; None where the choices cannot be composed, which is then told as such."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    from ippo_cli.compose.load import compose_node
    from ippo_cli.compose.searchpath import SEARCH_PATH

    choices = [text for text in overrides if text.startswith((SEARCH_PATH, "task=", "+experiment="))]
    try:
        return [str(name) for name in compose_node(choices).task.agents]
    except (HydraException, OmegaConfBaseException, YAMLError):
        return None


def _parse_agents(text: str, value: str) -> dict[str, Any]:
    """The agents of `task.agents={...}`."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    example = """task.agents={solver:{template:"{question}"}}"""
    try:
        agents = OverridesParser.create().parse_override(f"{AGENTS_KEY}={value}").value()
    except HydraException as error:
        raise ConfigError(text, "cannot be read", f"put quotes around templates, such as '{example}'") from error
    named = agents if isinstance(agents, dict) else {}
    if not named or not all(isinstance(agent, dict) and agent for agent in named.values()):
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
