"""Format errors of user code with the file and line that raised them."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

import ippo_cli
from ippo_cli.config.text import escape_controls

PACKAGE_FOLDER = str(Path(ippo_cli.__file__).parent)
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
MAX_CHARACTERS = 500


def format_user_error(error: BaseException) -> str:
    """`my_reward.py:12: KeyError: 'my_field'`: the innermost line outside libraries and this package, and the error.

    Returns the error alone if there is no such line. A `SyntaxError` already contains its line.
    """
    text = escape_controls(str(error)[:MAX_CHARACTERS])  # it may quote a response of a model
    is_ours = type(error).__module__.startswith(f"{ippo_cli.__name__}.")  # users do not know our class names
    message = text if is_ours else f"{type(error).__name__}: {text}"
    if isinstance(error, SyntaxError):
        return message
    frames = traceback.extract_tb(error.__traceback__)
    ours = [number for number, frame in enumerate(frames) if frame.filename.startswith(PACKAGE_FOLDER)]
    called = frames[ours[0] + 1 :] if ours else frames  # frames above ours belong to the launcher
    for frame in reversed(called):
        if not frame.filename.startswith((PACKAGE_FOLDER, *LIBRARIES, "<")):
            return f"{_relative_path(Path(frame.filename))}:{frame.lineno}: {message}"
    return message


def _relative_path(path: Path) -> Path:
    """The path relative to the current folder, if it is inside it."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
