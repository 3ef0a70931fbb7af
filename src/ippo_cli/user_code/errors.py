"""Where in a user's code an error arose."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

import ippo_cli

PACKAGE_FOLDER = str(Path(ippo_cli.__file__).parent)
LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
MAX_CHARACTERS = 500


def format_user_error(error: BaseException) -> str:
    """`my_reward.py:12: KeyError: 'my_field'`: the innermost line that is neither a library's nor ours, and the error.

    Without such a line the error alone. An error of one's own syntax names its line itself.
    """
    words = f"{error!s:.{MAX_CHARACTERS}}"
    is_ours = type(error).__module__.startswith(f"{ippo_cli.__name__}.")  # a class of ours has no name that users know
    message = words if is_ours else f"{type(error).__name__}: {words}"
    if isinstance(error, SyntaxError):
        return message
    frames = traceback.extract_tb(error.__traceback__)
    ours = [number for number, frame in enumerate(frames) if frame.filename.startswith(PACKAGE_FOLDER)]
    called = frames[ours[0] + 1 :] if ours else frames  # what stands above us is whoever started this program
    for frame in reversed(called):
        if not frame.filename.startswith((PACKAGE_FOLDER, *LIBRARIES, "<")):
            return f"{_relative_path(Path(frame.filename))}:{frame.lineno}: {message}"
    return message


def _relative_path(path: Path) -> Path:
    """Relative to where the command was typed, if it lies below."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
