"""What was typed, in the form in which Hydra takes it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ippo_cli.compose.path_keys import PLACES, TEXTS, escape_interpolations, make_absolute
from ippo_cli.config.commands import PATH_KEYS, last_value, quote_for_shell, typed_path
from ippo_cli.config.commands import quote_for_hydra as _literal
from ippo_cli.config.errors import ConfigError, combine_errors

SWEEP_FLAGS = ("-m", "--multirun")
SWEEP_MODE = "hydra.mode=MULTIRUN"
HYDRAS_OF_RUNS = ("hydra.searchpath", "hydra.callbacks", "hydra.job.env_")
HYDRAS_OF_SWEEPS = ("hydra/launcher", "hydra.launcher", "hydra/sweeper", "hydra.sweep", "hydra.job.", "hydra.mode")
"""Keys of Hydra's that have an effect, by how they begin; sweepers are `hydra.sweeper`."""
FOLDER_FLAGS = ("--config-dir", "-cd")
REMOTE_TRACKERS = ("wandb", "mlflow")  # in the order in which the option of both is named
LAUNCHERS = ("--local_rank", "--local-rank")  # what the deepspeed launcher adds
YAML_FILES = (".yaml", ".yml")
AGENTS = "task.agents"
# Hydra's keys that would move a run, and what to use instead.
NOT_HYDRAS = {
    "hydra.run.dir": "choose it with output_dir= and name=",
    "hydra.output_subdir": "Hydra writes nothing there; choose it with output_dir= and name=",
    "hydra.job.chdir": "the run stays where it was started",
}


OPEN = (
    r"(task\.(environment|dataset)_args|task\.columns|team\.groups|reward\.(parts|weights)"
    r"|(task\.agents\.\w+\.)?((actor|critic)\.(rank|alpha)_pattern|actor\.model_args))(\..+)?"
)
"""Keys below which others may be typed."""


def arguments(typed: Sequence[str]) -> list[str]:
    """Flags first, since Hydra refuses overrides on both sides of one; folders and files of one's own as a search
    path, so that they are kept with a run's other overrides; files and folders in full; agents that are added by
    typing them; the kind of one agent's actor or critic; and quotes around values that Hydra's grammar cannot read,
    such as `{question}`."""
    _check_shell_splits(typed)
    kept, folders = _folders([text for text in typed if not text.startswith(LAUNCHERS)])
    resumed = last_value(kept, "resume") not in (None, "never", "auto", "must")  # it may be a sweep
    sweeps = resumed or bool({*SWEEP_FLAGS, SWEEP_MODE} & {*kept})
    flags = [text for text in kept if not is_override(text)]
    overrides: list[str] = []
    for text in (text for text in kept if is_override(text)):
        key = text.partition("=")[0].lstrip("+~")
        if text.startswith("~") and not key.startswith(f"{AGENTS}."):
            raise ConfigError(
                text,
                "cannot be deleted",
                f"give it another value, as {key}=VALUE",
            )
        if key in NOT_HYDRAS:
            raise ConfigError(text, "is not supported", NOT_HYDRAS[key])
        _check_has_effect(text, key, sweeps=sweeps)
        if re.fullmatch(OPEN, key):
            text = "++" + text.lstrip("+")  # keys of the user's choice, which no schema names
        text = _meant_choice(text)
        text, files = _options_by_file(text)
        folders += files
        overrides.append(quoted(_in_full(text)))
        if sweeps and overrides[-1] != text and "," in _outside_quotes(text.partition("=")[2]):
            _check_one_value(text)
    return [*flags, *map(_with_kind, _with_agents(with_one_search_path(overrides, folders)))]


def _check_has_effect(text: str, key: str, *, sweeps: bool) -> None:
    """Raise `ConfigError` for a key of Hydra's that changes nothing here."""
    if not key.startswith(("hydra.", "hydra/")) or key.startswith(HYDRAS_OF_RUNS):
        return
    if key.startswith(HYDRAS_OF_SWEEPS):
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


def _outside_quotes(value: str) -> str:
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


def _meant_choice(text: str) -> str:
    """`experiment=` is written with a plus, and a list of trackers is the option that has them all."""
    key, equals, value = text.partition("=")
    if equals and key == "experiment":
        return f"+{text}"
    if key != "tracker" or not re.fullmatch(r"\[.*\]", value):
        return text
    names = {part.strip().strip("'\"") for part in value[1:-1].split(",")}
    unknown = names - {"tensorboard", *REMOTE_TRACKERS}
    if unknown or not names:
        shown = " ".join(("tensorboard", *REMOTE_TRACKERS))
        raise ConfigError(text, "is no list of trackers", f"choose from {shown}, or tracker=none alone")
    remote = "_".join(name for name in REMOTE_TRACKERS if name in names)
    return f"tracker={remote or 'tensorboard'}"  # tracker.tensorboard says whether its files are written beside them


def _with_kind(text: str) -> str:
    """`task.agents.low.critic=value_head` chooses for one agent what `critic=value_head` chooses for all."""
    return re.sub(rf"^(\+*{re.escape(AGENTS)}\.\w+\.(?:actor|critic))=(?=\w+(,\w+)*$)", r"\1.kind=", text)


def is_override(text: str) -> bool:
    """Whether an argument is one, and no flag nor a flag's value."""
    return not text.startswith("-") and ("=" in text or text.startswith(("+", "~")))


def quoted(text: str) -> str:
    """The override with quotes around its value where only that can be read."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    if not is_override(text):
        return text
    parser = OverridesParser.create()
    key, _, value = text.partition("=")
    if key in PATH_KEYS:
        return text  # the commands read these themselves
    if re.fullmatch(rf"\+*{re.escape(AGENTS)}(\.\w+)?", key):
        return text  # what is wrong with them is told when they are read
    for attempt in (text, f"{key}={_literal(value)}"):
        try:
            parser.parse_override(attempt)
        except HydraException:
            continue
        return attempt
    return text


def with_one_search_path(overrides: Sequence[str], places: Sequence[str] = ()) -> list[str]:
    """The overrides with all that they and `places` add to the search path in one, last: Hydra reads the first such
    override alone."""
    from ippo_cli.compose.searchpath import SEARCH_PATH, entries

    if not places and sum(text.startswith(SEARCH_PATH) for text in overrides) < 2:
        return list(overrides)
    added = dict.fromkeys([*entries(overrides), *places])
    rest = [text for text in overrides if not text.startswith(SEARCH_PATH)]
    return [*rest, f"{SEARCH_PATH}[{','.join(map(_literal, added))}]"]


def _in_full(text: str) -> str:
    """The override with the absolute path of each file or folder that it names, and with `${` in texts as text."""
    key, _, value = text.partition("=")
    if TEXTS.fullmatch(key) and (escaped := escape_interpolations(value)) != value:
        return f"{key}={escaped}"
    if value[:1] in ("'", '"') and value[-1:] == value[:1]:
        value = value[1:-1]
    if not PLACES.fullmatch(key):
        return text
    if value.startswith("[") and value.endswith("]"):
        listed = _listed(text)
        return text if listed is None else f"{key}=[{','.join(map(_literal, make_absolute(key, listed)))}]"
    full = make_absolute(key, value)
    if full == value:  # a name on the hub, a module, a text, or a mistake that is told later
        return text
    return f"{key}={full}" if re.fullmatch(r"[\w./:-]+", full) else f"{key}={_literal(full)}"


def _listed(text: str) -> list[str] | None:
    """The texts of a list that is typed as a value."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(text).value()
    except HydraException:
        return None
    return [str(part) for part in parsed] if isinstance(parsed, list) else None


def _folders(typed: Sequence[str]) -> tuple[list[str], list[str]]:
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


def _options_by_file(text: str) -> tuple[str, list[str]]:
    """`task=mine` for `task=path/to/mine.yaml`, and the file's entry in the search path."""
    from ippo_cli.compose.load import config_dir
    from ippo_cli.compose.searchpath import entry

    key, _, value = text.partition("=")
    group = key.lstrip("+")
    parts = [str(typed_path(value))] if typed_path(value).is_file() else _option_parts(value)
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
        files.append(entry(file.parent.parent) if below else entry(file, group))
    return f"{key}={','.join(names)}", files


def _option_parts(value: str) -> list[str]:
    """The options of a list such as `a,b`, as a sweep has them."""
    return [part.strip().strip("'\"") for part in value.split(",")]


def _with_agents(overrides: list[str]) -> list[str]:
    """The overrides with agents that the task does not have made first, in a form that keeps their types.

    `task.agents={a: ..., b: ...}` names all agents, and those of the task give way; `+task.agents.a.template=` adds.
    """
    wanted = [text for text in overrides if text.lstrip("+").startswith(AGENTS) and _adds_agents(text)]
    there = _agents_there(overrides) if wanted else None
    if there is None:
        return overrides
    made: dict[str, None] = {}
    gone: list[str] = []
    kept: list[str] = []
    for text in overrides:
        key, _, value = text.partition("=")
        if text not in wanted:
            kept.append(text)
        elif key.lstrip("+") == AGENTS:
            agents = _typed_agents(text, value)
            if not key.startswith("+"):
                gone = [f"~{AGENTS}.{name}" for name in there]
            made |= dict.fromkeys(agents)
            kept += [f"{AGENTS}.{leaf}={spelled}" for leaf, spelled in _spelled_leaves(agents)]
        else:
            name, _, rest = key.lstrip("+").removeprefix(f"{AGENTS}.").partition(".")
            made |= {} if name in there else {name: None}
            whole = {} if rest else _typed_agents(text, f"{{{name}:{value}}}")
            kept += [f"{AGENTS}.{leaf}={spelled}" for leaf, spelled in _spelled_leaves(whole)] or [text.lstrip("+")]
    creation = f"++{AGENTS}={{{','.join(f'{name}:{{}}' for name in made)}}}"
    first = next(place for place, text in enumerate(kept) if text.startswith(f"{AGENTS}."))
    return [*kept[:first], *gone, *([creation] if made else []), *kept[first:]]


def _adds_agents(text: str) -> bool:
    """Whether an override names agents that may be new; what `_with_agents` makes of one does not."""
    key, _, value = text.partition("=")
    added = re.fullmatch(rf"\+{{1,2}}{re.escape(AGENTS)}\.\w+(\..+)?", key) is not None
    return added or (key.lstrip("+") == AGENTS and not re.fullmatch(r"\{(\w+:\{\},?)+\}", value))


def _agents_there(overrides: Sequence[str]) -> list[str] | None:
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


def _typed_agents(text: str, value: str) -> dict[str, Any]:
    """The agents of `task.agents={...}`."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    example = """task.agents={solver:{template:"{question}"}}"""
    try:
        agents = OverridesParser.create().parse_override(f"{AGENTS}={value}").value()
    except HydraException as error:
        raise ConfigError(text, "cannot be read", f"put quotes around templates, such as '{example}'") from error
    named = agents if isinstance(agents, dict) else {}
    if not named or not all(isinstance(agent, dict) and agent for agent in named.values()):
        raise ConfigError(text, "does not name agents with their templates", f"write '{example}'")
    return {str(name): agent for name, agent in named.items()}


def _spelled_leaves(agents: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in agents.items():
        if isinstance(value, dict):
            yield from _spelled_leaves(value, f"{prefix}{name}.")
        elif isinstance(value, str):
            is_text = TEXTS.fullmatch(f"{AGENTS}.{prefix}{name}")
            yield f"{prefix}{name}", _literal(escape_interpolations(value) if is_text else value)
        else:
            yield f"{prefix}{name}", str("null" if value is None else value)
