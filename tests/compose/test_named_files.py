"""All missing files and functions of a command line are reported at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.compose.mistakes import find_mistakes
from ippo_cli.compose.named_files import check_named_files
from ippo_cli.config.errors import ConfigError

CODE = """\
def score(rows):
    raise RuntimeError("this file must not run")
"""
TASK = ["task=jsonl", "task.agents.solo.template={question}", "task.agents.solo.answer={answer}", "reward=function"]


def mistakes_of(folder: Path, *overrides: str) -> list[str]:
    (folder / "mine.py").write_text(CODE)
    typed = [text.replace("mine.py", f"{folder}/mine.py") for text in (*TASK, *overrides)]
    found = [str(error) for error in check_named_files(load_config(normalize_arguments(typed)))]
    return [text.replace(f"{folder}/", "") for text in found]


def test_all_missing_files_and_functions_are_reported(tmp_path: Path) -> None:
    found = mistakes_of(
        tmp_path,
        "task.train=no.jsonl",
        "task.eval=nothing/here/rows",
        "reward.function=mine.py:scores",
        "tracker.callback=other.py:call",
        "task.agents.solo.tools=[mine.py,tools.py]",
        "actor=full",
        "actor.model=/no/such/model",
    )
    assert [text.partition(" ")[0] for text in found] == [
        "actor.model=/no/such/model",
        "task.train=no.jsonl",
        "task.eval=nothing/here/rows",
        "task.agents.solo.tools=tools.py",
        "reward.function=mine.py:scores",
        "tracker.callback=other.py:call",
    ]
    assert found[4].endswith("names no function in mine.py (closest: score); it has: score")


def test_existing_names_and_names_that_only_a_run_of_the_file_defines_pass(tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("{}")
    own = [f"task.train={data}", f"task.eval={data}"]
    assert not mistakes_of(tmp_path, *own, "reward.function=mine.py:score")
    (tmp_path / "dynamic.py").write_text("import sys\nif sys.argv:\n    from os import *\n")
    assert not mistakes_of(tmp_path, *own, f"reward.function={tmp_path}/dynamic.py:any_name")


@pytest.mark.parametrize("typo", ["rollout.bufer_size=3", "seed=abc"])
def test_missing_files_are_reported_beside_mistyped_keys(typo: str) -> None:
    typed = [*TASK, "task.train=no.jsonl", "task.eval=null", "reward.function=no.py:score", typo]
    found = find_mistakes(ConfigError("x=1", "is wrong", "remove it"), typed, ())
    settings = {str(error).partition(" ")[0] for error in found}
    assert {typo, "task.train=no.jsonl", "reward.function=no.py:score"} <= settings


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (None, "cannot be read (No such file or directory)"),
        (b" \n", "is empty"),
        (b"\xff", "is not a text in UTF-8"),
        (
            b"{% for m in messages %}\n{{ m.content }{% endfor %}",
            "is not a valid Jinja template (line 2: unexpected '}')",
        ),
        (b"{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", ""),
    ],
)
@pytest.mark.parametrize("prefix", ["", "task.agents.solo."])
def test_chat_template_file(text: bytes | None, rule: str, prefix: str, tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    if text is not None:
        file.write_bytes(text)
    data = tmp_path / "rows.jsonl"
    data.write_text("{}")
    model = ["actor=full", f"actor.model={tmp_path}", f"task.train={data}", f"task.eval={data}"]
    found = mistakes_of(tmp_path, *model, "reward=exact_match", f"{prefix}actor.chat_template={file}")
    assert len(found) == bool(rule)
    assert not rule or found[0].startswith(f"{prefix}actor.chat_template=chat.jinja {rule}")
