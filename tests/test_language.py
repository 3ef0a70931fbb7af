"""Budgets for words that make identifiers and prose hard to read; `CONTRIBUTING.md` gives replacements."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import ippo_cli

SOURCE = Path(ippo_cli.__file__).parent
ROOT = SOURCE.parents[1]
# Uses that remain: in comments, docstrings and messages of the source, and in documents. A budget only goes down.
PROSE = {
    "told": 0,
    "said": 0,
    "heard": 0,
    "hears": 0,
    "whose": 10,
    "nobody": 0,
    "somebody": 0,
    "whoever": 0,
    "anew": 0,
    "alike": 0,
    "lies": 0,
    "stands": 0,
    "stood": 0,
    "goes on": 0,
    "gone on": 0,
    "mend": 0,
    "speaks": 0,
    "spoken": 0,
    "luck": 0,
    "paid": 0,
    "reckoned": 0,
    "beforehand": 0,
    "worlds": 0,
    "at rest": 0,
}
# In CONTRIBUTING.md the examples of wording to avoid, in conf/ a prompt.
DOCUMENTS = dict.fromkeys(PROSE, 0) | {"told": 1, "somebody": 1, "whose": 0}
# Identifiers with such a word as one of their parts.
IDENTIFIERS = {
    "told": 0,
    "said": 0,
    "heard": 0,
    "whose": 0,
    "nobody": 0,
    "anew": 0,
    "alike": 0,
    "there": 0,
    "dealt": 0,
    "asked": 1,
    "given": 8,
    "kept": 17,
    "shown": 10,
    "made": 5,
    "taken": 3,
    "drawn": 11,
}
PARTICIPLE_FUNCTIONS = (
    1  # functions named by a participle alone: `Episode.finished`, which reward functions of users may call
)
IRREGULAR = frozenset(
    [
        "begun",
        "built",
        "dealt",
        "drawn",
        "found",
        "given",
        "gone",
        "heard",
        "held",
        "kept",
        "known",
        "left",
        "lost",
        "made",
        "meant",
        "met",
        "put",
        "read",
        "said",
        "seen",
        "sent",
        "shown",
        "spoken",
        "spread",
        "taken",
        "told",
        "thought",
        "thrown",
        "written",
    ]
)
NO_PARTICIPLES = frozenset({"read", "put", "spread", "seed", "feed", "need", "embed", "speed", "shed", "found"})


@cache
def prose() -> str:
    """Comments and texts of the source; docstrings are texts."""
    return "\n".join(text for file in sorted(SOURCE.rglob("*.py")) for text in _texts(file))


def _texts(file: Path) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield token.string


@cache
def documents() -> str:
    files = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "conf").rglob("*.yaml"))]
    files += [file for file in sorted((ROOT / "docs").rglob("*.md")) if file.name != "log.md"]
    return "\n".join(file.read_text() for file in files)


@cache
def identifiers() -> Counter[str]:
    """How many names of the source have a word as one of their parts."""
    counts: Counter[str] = Counter()
    for file in SOURCE.rglob("*.py"):
        for name in _defined_names(file):
            counts.update(set(re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower())))
    return counts


def _defined_names(file: Path) -> Iterator[str]:
    """Functions, classes, parameters, and what is assigned to; each once for every place."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def count(word: str, text: str) -> int:
    """Uses of a word; the template field `{heard}` has its name from earlier task files."""
    return len(re.findall(rf"(?<![{{\"`])\b{re.escape(word)}\b(?![}}\"`=])", text, re.IGNORECASE))


@pytest.mark.parametrize("word", PROSE)
def test_word_in_source_prose_within_budget(word: str) -> None:
    assert count(word, prose()) <= PROSE[word]


@pytest.mark.parametrize("word", DOCUMENTS)
def test_word_in_documents_within_budget(word: str) -> None:
    if not (ROOT / "docs").is_dir():
        pytest.skip("the documents belong to a checkout, not to an installed package")
    assert count(word, documents()) <= DOCUMENTS[word]


@pytest.mark.parametrize("word", IDENTIFIERS)
def test_word_in_identifiers_within_budget(word: str) -> None:
    assert identifiers()[word] <= IDENTIFIERS[word]


def test_functions_named_by_a_participle_within_budget() -> None:
    names = [
        f"{file.relative_to(SOURCE)}: {node.name}"
        for file in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_participle(node.name.strip("_"))
    ]
    assert len(names) <= PARTICIPLE_FUNCTIONS, "\n".join(names)


def _is_participle(name: str) -> bool:
    return name in IRREGULAR - NO_PARTICIPLES or (
        name.endswith("ed") and "_" not in name and name not in NO_PARTICIPLES
    )
