"""Text of `--info`: versions of the program and its libraries, and the folders of options."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from ippo_cli import __version__
from ippo_cli.compose.load import config_dir
from ippo_cli.compose.searchpath import search_path_entries

INFO_FLAGS = {"--info", "-i"}
LIBRARIES = ("torch", "transformers", "deepspeed", "hydra-core", "omegaconf", "peft", "datasets")


def show_info(overrides: Sequence[str]) -> str:
    """The text of `--info`, one line per entry."""
    rows = [("ippo-cli", __version__), ("python", platform.python_version()), ("system", platform.platform(terse=True))]
    rows += [(library, _version(library)) for library in LIBRARIES]
    rows.append(("options", str(config_dir())))
    rows += [("", str(place)) for place in search_path_entries(overrides)]
    rows.append(("configuration", "ippo-train --cfg job [overrides]"))
    return "".join(f"{label:<15}{text}\n" for label, text in rows)


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"
