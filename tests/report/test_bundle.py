"""The page's program: modules join to one script, and libraries carry their licences."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from ippo_cli.report import page
from ippo_cli.report.page import ASSETS, application_script, style_sheet, vendor_scripts

MODULES = sorted((ASSETS / "app").glob("*.js"))
TOP_LEVEL = re.compile(r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)", re.MULTILINE)


def test_all_modules_are_joined_after_what_they_import() -> None:
    script = application_script()
    order = re.findall(r"^// (\w+\.js)$", script, re.MULTILINE)
    assert sorted(order) == [file.name for file in MODULES]
    assert order[-1] == "main.js"
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    for file in MODULES:
        for found in page.IMPORT.finditer(file.read_text()):
            assert order.index(found["file"]) < order.index(file.name)


def test_names_at_the_top_level_differ() -> None:
    names = Counter(name for file in MODULES for name in TOP_LEVEL.findall(file.read_text()))
    assert [name for name, count in names.items() if count > 1] == []


def test_imported_names_are_exported() -> None:
    for file in MODULES:
        for found in page.IMPORT.finditer(file.read_text()):
            names = re.findall(r"\w+", found[0].split("{")[1].split("}")[0])
            source = (ASSETS / "app" / found["file"]).read_text()
            absent = [
                name
                for name in names
                if not re.search(rf"^export (async )?(function|const|let|class) {name}\b", source, re.M)
            ]
            assert absent == [], f"{file.name} imports {absent} from {found['file']}"


def test_modules_that_import_each_other_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'}
    monkeypatch.setattr(page, "_read_module", texts.__getitem__)
    with pytest.raises(ValueError, match=r"import each other: a\.js -> b\.js -> a\.js"):
        page._visit("a.js", [], ())


def test_model_text_is_never_parsed_as_markup() -> None:
    markup = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(")
    assert [file.name for file in MODULES if markup.search(file.read_text())] == []


def test_libraries_have_their_licences_and_no_source_map() -> None:
    for text in (*vendor_scripts(), style_sheet()):
        assert "The MIT License" in text or "MIT License" in text
        assert "sourceMappingURL" not in text
        assert "</script" not in text.lower()
    assert "</style" not in style_sheet().lower()
