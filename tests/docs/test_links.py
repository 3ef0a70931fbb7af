"""Links and anchors of documents resolve, and every page is in one toctree of the index."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INDEX = (ROOT / "docs" / "index.md").read_text()
DOCUMENTS = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")] + [
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "conf").rglob("*.md")),
    *sorted((ROOT / "scripts").rglob("*.md")),
]


def without_code(text: str) -> str:
    """Return a document without its code blocks."""
    return re.sub(r"^ *(```+|~~~+).*?^ *\1\s*$", "", text, flags=re.DOTALL | re.MULTILINE)


@cache
def anchors(file: Path) -> set[str]:
    """Return the anchors that GitHub creates for the headings of a document."""
    text = without_code(file.read_text())
    found: Counter[str] = Counter()
    names = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#{1,6} +(.+?)#* *$", text, re.MULTILINE):
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if found[slug] else slug)
        found[slug] += 1
    return names


def dead_links(file: Path) -> list[str]:
    text = re.sub(r"`[^`\n]*`", "", without_code(file.read_text()))
    dead: list[str] = []
    for target in re.findall(r'\]\(<?([^()\s>]+)>?(?: +"[^"]*")?\)', text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        goal = (file.parent / path).resolve() if path else file
        if not goal.exists() or (anchor and (goal.suffix != ".md" or anchor not in anchors(goal))):
            dead.append(target)
    return dead


def test_links_resolve() -> None:
    assert {str(file.relative_to(ROOT)): dead for file in DOCUMENTS if (dead := dead_links(file))} == {}


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `b`=\n\n## Two words\n\n## Two words\n\n```\n# no heading\n```\n")
    good = "[a](other.md#a-b) [b](other.md#two-words-1) [`c`](#here) [d](https://x.org/none.md) `[e](code.md)`"
    bad = "[a](none.md) [b](other.md#no-heading) [`c`](#there) ![d](none.svg)"
    (tmp_path / "page.md").write_text(f"# Here\n\n{good}\n\n{bad}\n\n```\n[f](block.md)\n```\n")
    assert dead_links(tmp_path / "page.md") == ["none.md", "other.md#no-heading", "#there", "none.svg"]


def toctrees() -> dict[str, list[str]]:
    """Return the pages of the site's toctrees by caption."""
    trees = re.findall(r"```\{toctree\}\n:hidden:\n:caption: (\w+)\n\n(.*?)\n```", INDEX, re.DOTALL)
    return {caption: [f"{name}.md" for name in names.split("\n")] for caption, names in trees}


def test_every_page_is_in_one_toctree() -> None:
    assert list(toctrees()) == ["Start", "Guides", "Reference", "Background"]
    listed = Counter(name for names in toctrees().values() for name in names)
    pages = {file.name for file in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert set(listed.values()) == {1}
    assert {name for name in listed if "/" not in name} == pages


@pytest.mark.parametrize("caption", toctrees())
def test_index_text_and_toctree_list_the_same_pages(caption: str) -> None:
    section = INDEX.split(f"\n## {caption}\n")[1].split("\n## ")[0].split("```")[0]
    assert re.findall(r"\]\((\S+)\)", section) == toctrees()[caption]


def test_decision_index_lists_every_record() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = Counter(re.findall(r"\]\((\d\S+\.md)\)", (folder / "README.md").read_text()))
    assert listed == Counter(file.name for file in folder.glob("0*.md"))
