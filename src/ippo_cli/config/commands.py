"""Commands and paths between a run and a shell: quoted where they are printed, read where they are typed."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

PATH_KEYS = ("resume", "run", "model", "compare", "to")
"""Keys of this program's own commands: Hydra never reads them, so their values need no quotes of its grammar."""
_PLAIN = re.compile(r"[\w./:@%+-]+", re.ASCII)  # what Hydra reads as one text
_LIST = re.compile(r"\[.*\]", re.DOTALL)


def shell_command(program: str, *arguments: str | tuple[str, str]) -> str:
    """A command that can be pasted into bash: flags as they are, and `(key, value)` as `key=value`."""
    words = [text if isinstance(text, str) else hydra_override(*text) for text in arguments]
    return " ".join([program, *map(quote_for_shell, words)])


def hydra_override(key: str, value: str) -> str:
    """`key=value`, with quotes of Hydra's grammar where the value needs them."""
    return f"{key}={value if key in PATH_KEYS or _PLAIN.fullmatch(value) else quote_for_hydra(value)}"


def quote_for_shell(text: str) -> str:
    """One word of a shell; what cannot be printed is escaped, since it would be lost on a screen."""
    if text.isprintable():
        quoted = shlex.quote(text)
        return f"'{text}'" if quoted == text and "," in text else quoted  # in a sentence a comma ends a word
    escaped = "".join(c if c.isprintable() and c not in "\\'" else _escape_character(c) for c in text)
    return f"$'{escaped}'"


def quote_for_hydra(value: str) -> str:
    """A value in quotes of Hydra's grammar. Backslashes are literal, except before a quote."""
    return "'" + re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), value) + "'"


def parse_path(value: str) -> Path:
    """The path that was typed as a key's value: as it is where there is such a file, else without Hydra's quotes."""
    if not _exists(_expand_home(value)) and (bare := _strip_quotes(value)) != value:
        return _expand_home(bare)
    return _expand_home(value)


def parse_paths(value: str) -> list[str]:
    """The paths of a list, `[a,b]` or `a,b`: one path where there is one of this name."""
    if not value.strip():  # else `Path("")`, the folder of the user
        return []
    if _exists(parse_path(value)):
        return [str(parse_path(value))]
    inner = value[1:-1] if _LIST.fullmatch(value) else value
    # A comma inside of quotes belongs to a path.
    parts = re.findall(r"""\s*('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^,]+)\s*(?:,|\Z)""", inner)
    return [str(parse_path(part.strip())) for part in parts if part.strip()]


def last_value(arguments: Sequence[str], key: str) -> str | None:
    """The value that `key=` has last among the arguments; None where it is not typed."""
    return next((text.partition("=")[2] for text in reversed(arguments) if text.startswith(f"{key}=")), None)


def _escape_character(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def _strip_quotes(value: str) -> str:
    """The value of a text in quotes; any other text is itself."""
    if len(value) < 2 or value[0] not in "'\"" or value[-1] != value[0]:
        return value
    from hydra.core.override_parser.overrides_parser import OverridesParser  # not at the top: printing needs no Hydra
    from hydra.errors import HydraException

    try:
        return str(OverridesParser.create().parse_override(f"x={value}").value())
    except HydraException:
        return value


def _expand_home(value: str) -> Path:
    """The path with `~` as a home, which no shell does behind a `=`; a file may have the name itself."""
    try:
        return Path(value) if _exists(Path(value)) else Path(value).expanduser()
    except RuntimeError:  # no such user
        return Path(value)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False
