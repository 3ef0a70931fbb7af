"""Names in a package's registry: what would work where one is not there, and whether there is a newer version."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection

from ippo_cli.config.errors import ConfigError

VERSION = re.compile(r"[-_]v(\d+)$")
MAX_SUGGESTIONS = 3
PACKAGES = {"ALE": "ale-py"}  # by the namespace of an id: what to install


def check_registered(setting: str, name: str, registered: Collection[str], *, kind: str, listing: str) -> None:
    """Raise `ConfigError` for a name that is not registered as it stands; `listing` is the code that prints all names.

    A name without its version is refused where there are versions: which one is the newest changes with the package.
    """
    if name in registered:
        return
    versions = _versions(name, registered)
    if versions:
        rule = "is a version that is not there (any more)" if VERSION.search(name) else "names no version"
        raise ConfigError(setting, rule, f"use {versions[-1]}")
    lists = f"python -c '{listing}' lists all"
    namespace, closest = name.rpartition("/")[0], _closest_names(name, registered)
    is_namespace_missing = namespace and not any(one.startswith(f"{namespace}/") for one in registered)
    if is_namespace_missing and (namespace in PACKAGES or not closest):
        package = f"install it ({PACKAGES[namespace]})" if namespace in PACKAGES else "install that package"
        rule = f"is in {namespace}/, where no installed package registers anything"
        raise ConfigError(setting, rule, f"{package}; {lists}")
    raise ConfigError(setting, f"is no {kind}", f"use {closest}; {lists}" if closest else lists)


def newer_version(name: str, known: Collection[str]) -> str | None:
    """The newest version of what a name names, where the name is that of an older one."""
    versions = _versions(name, known)
    return versions[-1] if versions and VERSION.search(name) and versions[-1] != name else None


def _versions(name: str, known: Collection[str]) -> list[str]:
    """All registered versions, oldest first."""
    bare = VERSION.sub("", name)
    return sorted((one for one in known if VERSION.sub("", one) == bare), key=_version_number)


def _version_number(name: str) -> int:
    found = VERSION.search(name)
    return int(found[1]) if found else -1


def _closest_names(name: str, known: Collection[str]) -> str:
    """The most similar names, the most similar first; a part counts: `tictactoe`. Empty: none is."""
    words = {VERSION.sub("", one).casefold(): one for one in sorted(known, key=_version_number)}
    words |= {word.rpartition("/")[2]: one for word, one in words.items()}
    wanted = VERSION.sub("", name).casefold()
    parts = (wanted, wanted.rpartition("/")[2])
    found = [word for part in parts for word in difflib.get_close_matches(part, words, n=MAX_SUGGESTIONS, cutoff=0.5)]
    found.sort(key=lambda word: -max(difflib.SequenceMatcher(None, part, word).ratio() for part in parts))
    offered = list(dict.fromkeys(words[word] for word in found))[:MAX_SUGGESTIONS]
    if not offered:
        return ""
    return offered[0] if len(offered) == 1 else f"{', '.join(offered[:-1])} or {offered[-1]}"
