"""Settings of the documentation site: Sphinx over the Markdown files of this repository (`scripts/site.sh`).

The source folder is the repository, so that links between README.md and docs/ are the same as on GitHub.
"""

from __future__ import annotations

import inspect
import re
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "scripts")]

import docs as generator  # noqa: E402  (scripts/docs.py)
from ippo_cli import __version__  # noqa: E402
from ippo_cli.formulas import shapes  # noqa: E402

project = "ippo-cli"
version = release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "conf/algorithm/README.md",
    "docs/*.md",
    "docs/decisions/*.md",
    "scripts/bench/README.md",
]
exclude_patterns = [".*", "build", "dist", "models", "outputs", "src", "tests"]

myst_heading_anchors = 6  # as on GitHub
myst_enable_extensions: list[str] = []

html_theme = "furo"
html_title = f"ippo-cli {__version__}"
html_show_copyright = False

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_type_aliases = {name: name for name in vars(shapes) if name[0].isupper()}
python_use_unqualified_type_names = True


def markdown_to_rst(text: str) -> str:
    """Convert the Markdown of a docstring: code in backticks, and indented blocks."""
    converted: list[str] = []
    in_block = False
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        indented = paragraph.startswith("    ")
        if indented and not in_block:
            converted.append("::")
        converted.append(paragraph if indented else _convert_spans(paragraph))
        in_block = indented
    return "\n\n".join(converted) + "\n"


def _convert_spans(paragraph: str) -> str:
    """Double the backticks of code, and escape what is markup in reStructuredText alone."""
    parts = re.split(r"(``.+?``|`[^`]+`)", paragraph, flags=re.DOTALL)
    for place, part in enumerate(parts):
        if place % 2 == 0:
            parts[place] = re.sub(r"(?<=\w)_(?!\w)|\|", r"\\\g<0>", part)
        elif not part.startswith("``"):
            parts[place] = f"`{part}`"
    return "".join(parts)


@cache
def _field_comments(name: str) -> dict[str, str]:
    """The comments behind the fields of a class."""
    module, _, cls = name.rpartition(".")
    try:
        return generator.comments(getattr(import_module(module), cls))
    except (AttributeError, ImportError, OSError, TypeError):
        return {}


def process_docstring(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Describe a field by its comment, and convert all docstrings."""
    owner, _, field = name.rpartition(".")
    if what == "attribute":
        lines[:] = [_field_comments(owner).get(field, "")]
    if obj is shapes:
        aliases = re.findall(r"^(?:[A-Z]\w* = .*)$", inspect.getsource(shapes), re.MULTILINE)
        lines += ["", *(f"    {alias}" for alias in aliases)]
    lines[:] = markdown_to_rst("\n".join(lines)).split("\n")


def process_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Write aliases as in the source, and types without their modules."""
    shortened = [
        text and re.sub(r"TypeAliasForwardRef\('(\w+)'\)|~(?:\w+\.)+", lambda found: found[1] or "", text)
        for text in (signature, returns)
    ]
    return shortened[0], shortened[1]


def link_folders(app: Any, docname: str, source: list[str]) -> None:
    """Let links to a folder lead to its README, as on GitHub."""
    here = (ROOT / docname).parent

    def with_readme(found: re.Match[str]) -> str:
        return f"]({found[1]}/README.md)" if (here / found[1] / "README.md").is_file() else found[0]

    source[0] = re.sub(r"\]\(([\w./-]+?)/?\)", with_readme, source[0])


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", process_docstring)
    app.connect("autodoc-process-signature", process_signature)
    app.connect("source-read", link_folders)
