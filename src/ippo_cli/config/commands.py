"""Shell commands and paths: quoted for printing, parsed from arguments."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

PATH_KEYS = ("resume", "run", "model", "compare", "to")
"""Keys that Hydra never parses, so that their values need no Hydra quotes."""
_PLAIN = re.compile(r"[\w./:@%+-]+", re.ASCII)  # Hydra parses such a value as one string without quotes
_LIST = re.compile(r"\[.*\]", re.DOTALL)


def shell_command(program: str, *arguments: str | tuple[str, str]) -> str:
    """Format a command for pasting into bash; `(key, value)` becomes `key=value`."""
    words = [text if isinstance(text, str) else hydra_override(*text) for text in arguments]
    return " ".join([program, *map(quote_for_shell, words)])


def name_positional_run(argv: Sequence[str]) -> list[str]:
    """Write `run=` before the folder of a run that is typed without a key, as `ippo-report` takes it."""
    has_run = any(text.startswith("run=") for text in argv)
    named: list[str] = []
    for place, text in enumerate(argv):
        is_value = place > 0 and argv[place - 1].startswith("--") and "=" not in argv[place - 1]
        is_argument = "=" in text or text.startswith(("-", "+", "~"))
        if has_run or is_value or is_argument or not _may_be_run(text):
            named.append(text)
        else:
            named.append(f"run={text}")
            has_run = True
    return named


def _may_be_run(text: str) -> bool:
    """A folder, except for that of a model, or a path to a folder that does not exist."""
    path = parse_path(text)
    if path.is_dir():
        return not (path / "config.json").is_file()
    return "/" in text and not path.exists() and not path.suffix


def activation_command() -> str | None:
    """The command that puts the commands of this virtual environment on the path; None if they are on it."""
    script = Path(sys.prefix) / "bin" / "activate"
    if shutil.which("ippo-eval") is not None or not script.is_file():
        return None
    return f"source {quote_for_shell(os.path.relpath(script) if script.is_relative_to(Path.cwd()) else str(script))}"


def hydra_override(key: str, value: str) -> str:
    """Format `key=value`, with Hydra quotes if the value needs them."""
    return f"{key}={value if key in PATH_KEYS or _PLAIN.fullmatch(value) else quote_for_hydra(value)}"


def quote_for_shell(text: str) -> str:
    """Quote one shell word; escapes unprintable characters."""
    if text.isprintable():
        quoted = shlex.quote(text)
        return f"'{text}'" if quoted == text and "," in text else quoted  # unquoted, a comma would end it in a sentence
    escaped = "".join(c if c.isprintable() and c not in "\\'" else _escape_character(c) for c in text)
    return f"$'{escaped}'"


def quote_for_hydra(value: str) -> str:
    """Quote a value for Hydra's grammar. Backslashes are literal, except before a quote."""
    return "'" + re.sub(r"(\\*)('|\Z)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), value) + "'"


def parse_path(value: str) -> Path:
    """Parse a path argument: the literal path if it exists, else without Hydra quotes."""
    if not _exists(expand_home(value)) and (bare := _strip_quotes(value)) != value:
        return expand_home(bare)
    return expand_home(value)


def parse_paths(value: str) -> list[str]:
    """Parse a list of paths, `[a,b]` or `a,b`; a single path if the whole text exists as a path."""
    if not value.strip():  # Path("") would be the working directory
        return []
    if _exists(parse_path(value)):
        return [str(parse_path(value))]
    inner = value[1:-1] if _LIST.fullmatch(value) else value
    # A comma inside quotes belongs to a path.
    parts = re.findall(r"""\s*('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|[^,]+)\s*(?:,|\Z)""", inner)
    return [str(parse_path(part.strip())) for part in parts if part.strip()]


def last_value(arguments: Sequence[str], key: str) -> str | None:
    """The value of the last `key=` argument; None if there is none."""
    return next((text.partition("=")[2] for text in reversed(arguments) if text.startswith(f"{key}=")), None)


def repeated_keys(arguments: Sequence[str], *, several: Collection[str] = ()) -> list[str]:
    """One line for each key that is given twice with different values, of which the last one counts.

    `several`: keys of which all values count. Values with open brackets are parts of one that the shell split.
    """
    values: dict[str, list[str]] = {}
    for text in arguments:
        key, equals, _ = text.partition("=")
        is_split = any(text.count(opening) != text.count(closing) for opening, closing in ("[]", "{}"))
        if equals and key and key not in several and not key.startswith(("-", "~")) and not is_split:
            values.setdefault(key.lstrip("+"), []).append(text)
    return [
        f"note: {' '.join(map(quote_for_shell, texts))}: the last one counts"
        for key, texts in values.items()
        if len({text.lstrip("+") for text in texts}) > 1
    ]


def _escape_character(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(character))


def _strip_quotes(value: str) -> str:
    """Remove Hydra quotes; a text without quotes is returned unchanged."""
    if len(value) < 2 or value[0] not in "'\"" or value[-1] != value[0]:
        return value
    from hydra.core.override_parser.overrides_parser import OverridesParser  # lazy: printing needs no Hydra
    from hydra.errors import HydraException

    try:
        return str(OverridesParser.create().parse_override(f"x={value}").value())
    except HydraException:
        return value


def expand_home(value: str | os.PathLike[str]) -> Path:
    """Expand `~`, which shells do not expand after `=`; an existing file of the literal name wins."""
    try:
        return Path(value) if _exists(Path(value)) else Path(value).expanduser()
    except RuntimeError:  # no such user
        return Path(value)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # not a valid file name
        return False
