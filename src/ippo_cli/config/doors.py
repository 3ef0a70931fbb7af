"""Keys that name code of users: `path.py:name`, `module:name`, or an entry point of an installed package."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from operator import attrgetter
from typing import NamedTuple

from ippo_cli.config.python_names import is_code_reference


class Door(NamedTuple):
    """How a key names code."""

    group: str  # of entry points
    option: str | None = None  # the option of the key's group that has the key: `reward=my.py:score` chooses both


DOORS = {
    "algorithm.advantage": Door("ippo.advantages"),
    "algorithm.objective": Door("ippo.objectives"),
    "reward.function": Door("ippo.rewards", "function"),
    "task.environment": Door("ippo.environments", "environment"),
    "rollout.engine": Door("ippo.engines", "engine"),
    "tracker.callback": Door("ippo.trackers", "tensorboard"),
}
CODE_CHOICES = {key.partition(".")[0]: (key, door) for key, door in DOORS.items() if door.option is not None}
"""The key of code and its door, by group with options."""


def find_entry_points(group: str) -> dict[str, EntryPoint]:
    """The entry points of a group in installed packages, by name."""
    return {point.name: point for point in sorted(entry_points(group=group), key=attrgetter("name"))}


def is_code(group: str, text: str) -> bool:
    """Whether a text names code: a reference, or an entry point of the group."""
    return is_code_reference(text) or text in find_entry_points(group)


def unknown_name_remedy(group: str, name: str, choices: Sequence[str] = ()) -> str:
    """What to write in place of a name that is neither of `choices` nor an entry point: the nearest names first."""
    known = [*choices, *find_entry_points(group)]
    close = get_close_matches(name, known, n=3, cutoff=0.6)
    listed = f"use one of {' '.join(known)}, or your own" if known else f"install a package of {group}, or use your own"
    return f"{f'did you mean {chr(32).join(close)}? ' if close else ''}{listed} as path.py:name"
