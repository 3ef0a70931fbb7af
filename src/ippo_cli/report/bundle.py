"""Joins the page's ES modules into one script, and its style sheets into one; no build step needs node."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ASSETS = Path(__file__).parent / "assets"
VENDOR_SCRIPTS = ("uplot/uPlot.iife.min.js", "tabulator/tabulator.min.js")
VENDOR_STYLES = ("uplot/uPlot.min.css", "tabulator/tabulator_simple.min.css")
IMPORT = re.compile(r'^import \{[^}]*\} from "\./(?P<file>[\w.]+)";\n', re.MULTILINE)
EXPORT = re.compile(r"^export (?=(?:async )?function|class|const|let)", re.MULTILINE)
SOURCE_MAP = re.compile(r"^(?://|/\*)# sourceMappingURL=.*$", re.MULTILINE)


@cache
def application_script() -> str:
    """The modules of `assets/app` in the order of their imports, as one module without imports and exports.

    Modules share one scope: names at their top level must differ.
    """
    order: list[str] = []
    _visit("main.js", order, ())
    parts = [EXPORT.sub("", IMPORT.sub("", _read_module(name))) for name in order]
    return "\n".join(f"// {name}\n{text}" for name, text in zip(order, parts, strict=True))


def _visit(name: str, order: list[str], path: tuple[str, ...]) -> None:
    """Append the modules that `name` imports, then `name`. Raises ValueError for a cycle."""
    if name in order:
        return
    if name in path:
        raise ValueError(f"modules import each other: {' -> '.join((*path, name))}")
    for found in IMPORT.finditer(_read_module(name)):
        _visit(found["file"], order, (*path, name))
    order.append(name)


def _read_module(name: str) -> str:
    return (ASSETS / "app" / name).read_text(encoding="utf-8")


@cache
def vendor_scripts() -> tuple[str, ...]:
    """The scripts of libraries, with their licences."""
    return tuple(_with_licence(name) for name in VENDOR_SCRIPTS)


@cache
def style_sheet() -> str:
    """The styles of libraries, then those of the page."""
    own = sorted((ASSETS / "styles").glob("*.css"))
    return "\n".join([*map(_with_licence, VENDOR_STYLES), *(file.read_text(encoding="utf-8") for file in own)])


def _with_licence(name: str) -> str:
    file = ASSETS / "vendor" / name
    licence = (file.parent / "LICENSE").read_text(encoding="utf-8").strip()
    return f"/*!\n{licence}\n*/\n" + SOURCE_MAP.sub("", file.read_text(encoding="utf-8")).strip()
