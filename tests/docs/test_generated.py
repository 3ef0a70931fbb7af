"""Pages generated from code are up to date and complete."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from loaded import loaded

from ippo_cli.compose.aliases import read_projects
from ippo_cli.compose.diagnose import config_groups
from ippo_cli.compose.load import KINDS, SINGLE_SCHEMAS, compose_node, iter_leaves, resolve_config
from ippo_cli.reporting.metrics import METRICS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def docs() -> ModuleType:
    return loaded(ROOT / "scripts" / "docs.py", "docs_script")


def test_generated_pages_are_up_to_date(
    docs: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["docs.py", "--check"])
    code = docs.main()
    assert capsys.readouterr().out.strip() == "", "run scripts/docs.py"
    assert code == 0


def test_outdated_page_is_reported(
    docs: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["docs.py", "--check"])
    monkeypatch.setattr(docs, "PAGES", {"docs/metrics.md": lambda: "something else"})
    assert docs.main() == 1
    assert capsys.readouterr().out == "out of date: docs/metrics.md\n"


def test_pages_list_every_key_metric_and_alias() -> None:
    config = (ROOT / "docs/config.md").read_text()
    values = resolve_config(compose_node([]))
    for group in (*SINGLE_SCHEMAS, *KINDS):
        section = config.split(f"\n## `{group}=`")[1].split("\n## ")[0]
        for name, _ in iter_leaves(values[group]):
            assert name.startswith("agents") or f"| `{name}` |" in section, (group, name)
    metrics = (ROOT / "docs/metrics.md").read_text()
    assert all(f"| `{key}` |" in metrics for key in METRICS)
    migrating = (ROOT / "docs/migrating.md").read_text()
    assert all(f"| `{alias}` |" in migrating for project in read_projects().values() for alias in project.keys)


def test_page_has_values_of_every_option(docs: ModuleType) -> None:
    page = " ".join((ROOT / "docs/config.md").read_text().replace("\\|", "|").split())
    for group, options in docs.ordered_groups().items():
        section = page.split(f" ## `{group}=` ")[1].split(" ## ")[0]
        tables, _, others = section.partition(" ### Other values ")
        for option in options:
            node = docs.composed(f"{group}={option}")[group]
            item = others.partition(f"- `{option}`:")[2].split(" - `")[0]
            for key in docs.group_keys(docs.schema_of(group, node)):
                value = " ".join(docs.format_value(node, key.name).replace("\\n", " ").split())
                rows = re.findall(rf"\| `{re.escape(key.name)}` \| [^|]* \| `(.*?)` \| ", tables)
                plain = value.removesuffix(docs.FITTED)
                known = value in rows or f"`{key.name}={plain}`" in item or f"```text {value} ```" in tables
                assert known or key.name in ("agents", "kind"), (group, option, key.name, value)


def test_tables_fit_page_width() -> None:
    lines = (ROOT / "docs/config.md").read_text().splitlines()
    assert max(map(len, lines)) <= 200
    assert max(len(re.findall(r"(?<!\\)\|", line)) for line in lines if line.startswith("|")) <= 5


def test_help_lists_every_group_with_every_option() -> None:
    text = (ROOT / "src/ippo_cli/cli/help.txt").read_text()
    for group, options in config_groups().items():
        lines = re.search(rf"^  {group} +(.*(?:\n {{14}}\S.*)*)$", text, re.MULTILINE)
        assert group == "experiment" or lines is not None, group
        listed = " ".join(lines[1].split()) if lines else ""
        assert lines is None or sorted(re.split(r" ?\| ?", listed)) == sorted(options)


def test_bars_in_table_cells_are_escaped() -> None:
    for page in ("config.md", "metrics.md", "migrating.md"):
        width = 0
        for line in (ROOT / "docs" / page).read_text().splitlines():
            cells = len(re.findall(r"(?<!\\)\|", line))
            assert not line.startswith("|") or width in (0, cells), (page, line)
            width = cells if line.startswith("|") else 0
