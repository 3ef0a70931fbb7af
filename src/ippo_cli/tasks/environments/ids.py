"""Check ids against a package's registry: suggest similar names, find newer versions."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

from ippo_cli.config.errors import ConfigError

VERSION = re.compile(r"[-_]v(\d+)$")
MAX_SUGGESTIONS = 3
PACKAGES = {"ALE": "ale-py"}  # namespace of an id -> package to install


def check_registered(setting: str, name: str, registered: Collection[str], *, kind: str, listing: str) -> None:
    """Raise `ConfigError` for a name that is not registered; `listing` is code that prints all names.

    A name without a version is rejected if versions exist, because the newest version depends on the package.
    """
    if name in registered:
        return
    versions = _versions(name, registered)
    if versions:
        rule = "is not an available version" if VERSION.search(name) else "names no version"
        raise ConfigError(setting, rule, f"use {versions[-1]}")
    lists = f"python -c '{listing}' lists all"
    namespace, closest = name.rpartition("/")[0], _closest_names(name, registered)
    is_namespace_missing = namespace and not any(name.startswith(f"{namespace}/") for name in registered)
    if is_namespace_missing and (namespace in PACKAGES or not closest):
        package = f"install it ({PACKAGES[namespace]})" if namespace in PACKAGES else "install that package"
        rule = f"is in the namespace {namespace}/, which no installed package registers"
        raise ConfigError(setting, rule, f"{package}; {lists}")
    raise ConfigError(setting, f"is not a known {kind}", f"use {closest}; {lists}" if closest else lists)


def newer_version(name: str, known: Collection[str]) -> str | None:
    """Return the newest registered version if the name is an older one; else None."""
    versions = _versions(name, known)
    return versions[-1] if versions and VERSION.search(name) and versions[-1] != name else None


def _versions(name: str, known: Collection[str]) -> list[str]:
    """All registered versions of a name, oldest first."""
    bare = VERSION.sub("", name)
    return sorted((other for other in known if VERSION.sub("", other) == bare), key=_version_number)


def _version_number(name: str) -> int:
    found = VERSION.search(name)
    return int(found[1]) if found else -1


def _closest_names(name: str, known: Collection[str]) -> str:
    """The most similar names as text, best first; also compares without namespace: `tictactoe`. Empty if none."""
    words = {VERSION.sub("", full).casefold(): full for full in sorted(known, key=_version_number)}
    words |= {word.rpartition("/")[2]: full for word, full in words.items()}
    wanted = VERSION.sub("", name).casefold()
    parts = (wanted, wanted.rpartition("/")[2])
    found = [word for part in parts for word in difflib.get_close_matches(part, words, n=MAX_SUGGESTIONS, cutoff=0.5)]
    found.sort(key=lambda word: -max(difflib.SequenceMatcher(None, part, word).ratio() for part in parts))
    offered = list(dict.fromkeys(words[word] for word in found))[:MAX_SUGGESTIONS]
    if not offered:
        return ""
    return offered[0] if len(offered) == 1 else f"{', '.join(offered[:-1])} or {offered[-1]}"
