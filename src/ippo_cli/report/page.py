"""Assembles the page: shell, styles, compressed data, libraries and program in one HTML file, without a build step."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from string import Template

from ippo_cli.report.chunks import chunk_element
from ippo_cli.report.payload import MAX_BYTES, build_payload
from ippo_cli.runs.records import RunRecord


def build_page(runs: Sequence[RunRecord], title: str, max_bytes: int = MAX_BYTES) -> str:
    """The page of these runs. It requests nothing: its content security policy allows its own scripts alone."""
    payload = build_payload(runs, title, max_bytes)
    scripts = [*vendor_scripts(), application_script()]
    shell = Template((ASSETS / "page.html").read_text(encoding="utf-8"))
    return shell.substitute(
        title=html.escape(title),
        policy=_content_policy(scripts),
        style=style_sheet(),
        data="\n".join(chunk_element(name, data) for name, data in payload.chunks.items()),
        libraries="\n".join(f"<script>{text}</script>" for text in scripts[:-1]),
        program=f'<script type="module">{scripts[-1]}</script>',
    )


def _content_policy(scripts: Sequence[str]) -> str:
    """Allow these inline scripts, inline styles, and images that the page makes itself."""
    hashes = " ".join(f"'sha256-{_digest(text)}'" for text in scripts)
    return f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


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
