"""What was typed, in the form in which Hydra takes it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ippo_cli.config.errors import ConfigError

SWEEP_FLAGS = ("-m", "--multirun")
FOLDER_FLAGS = ("--config-dir", "-cd")
SEARCH_PATH = "hydra.searchpath="
# Keys that may name a file or a folder: written in full, for a run is resumed and evaluated from anywhere.
PLACES = re.compile(
    r"\+{0,2}(task\.(train|eval)|reward\.function|(task\.agents\.\w+\.)?(actor\.model|critic\.(model|warm_start)))"
)
LAUNCHERS = ("--local_rank", "--local-rank")  # what the deepspeed launcher adds


def arguments(typed: Sequence[str]) -> list[str]:
    """Flags first, since Hydra refuses overrides on both sides of one; a folder of task files as an override, so that
    it is kept with a run's others; files and folders in full; and quotes around values that Hydra's grammar cannot
    read, such as `{question}`."""
    kept = _folders_as_overrides([text for text in typed if not text.startswith(LAUNCHERS)])
    return [quoted(_in_full(text)) for text in sorted(kept, key=is_override)]


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
    for attempt in (text, f"{key}={_literal(value)}"):
        try:
            parser.parse_override(attempt)
        except HydraException:
            continue
        return attempt
    return text


def _in_full(text: str) -> str:
    """The override with the absolute path of the file or folder that it names, if it names one."""
    key, _, value = text.partition("=")
    if not PLACES.fullmatch(key):
        return text
    place, colon, name = value.rpartition(":") if key.endswith("reward.function") else (value, "", "")
    if place[:1] in ("'", '"') and place[-1:] == place[:1]:
        place = place[1:-1]
    if not place or not Path(place).exists():  # a name on the hub, a module, or a mistake that is told later
        return text
    full = f"{Path(place).absolute()}{colon}{name}"
    return f"{key}={full}" if re.fullmatch(r"[\w./:-]+", full) else f"{key}={_literal(full)}"


def _literal(value: str) -> str:
    """In quotes. Backslashes are themselves, except before a quote, the closing one included."""
    return "'" + re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), value) + "'"


def _folders_as_overrides(typed: Sequence[str]) -> list[str]:
    rest: list[str] = []
    folders: list[str] = []
    waiting = iter(typed)
    for text in waiting:
        flag, given, value = text.partition("=")
        if flag in FOLDER_FLAGS:
            folders.append(value if given else next(waiting, ""))
        else:
            rest.append(text)
    for folder in folders:
        if not folder or not Path(folder).is_dir():
            raise ConfigError(f"{FOLDER_FLAGS[0]}={folder}", "is no folder", "give one that has, say, task/mine.yaml")
    if not folders:
        return rest
    return [*rest, f"{SEARCH_PATH}[{','.join(_literal(str(Path(folder).absolute())) for folder in folders)}]"]
