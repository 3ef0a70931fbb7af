"""Shell commands of README.md and docs/*.md run as typed; those that need another machine say why they do not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from document_commands import SKIPPED, commands_to_train, complete, pages, read_commands, run_page

COMMANDS = [command for commands in pages().values() for command in commands]
RUNNABLE = [page for page, commands in pages().items() if any(command.skip_reason is None for command in commands)]


def test_blocks_are_read_line_by_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Text\n\n```bash\nippo-train a=1 \\\n  b='# 2'   # train\n# a comment\nfor x in a; do\n  y\ndone\n```\n"
    (tmp_path / "page.md").write_text(text)
    monkeypatch.setattr("document_commands.ROOT", tmp_path)
    commands = read_commands("page.md")
    assert [(command.line, command.text) for command in commands] == [
        (4, "ippo-train a=1 b='# 2'"),
        (7, "for x in a; do\n  y\ndone"),
    ]


def test_every_reason_to_skip_is_one_of_a_command() -> None:
    for pattern, reason in SKIPPED:
        assert any(re.search(pattern, command.text) for command in COMMANDS), (pattern, reason)
    assert len([command for command in COMMANDS if command.skip_reason is None]) > 2 * len(COMMANDS) / 3


def test_every_option_is_trained() -> None:
    trainable = [command for command in COMMANDS if command.is_training and not command.is_sweep]
    options = {option for command in trainable if command.skip_reason is None for option in command.options}
    assert options <= {option for command in commands_to_train() for option in command.options}
    assert {"algorithm=mappo", "critic=value_head", "team=shared_base", "reward=http", "task=gymnasium"} <= options


def test_no_omission_is_left() -> None:
    assert not [text for command in COMMANDS if command.skip_reason is None and "..." in (text := complete(command))]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUNNABLE)
def test_commands_of_page_run(page: str, tmp_path: Path) -> None:
    failures = [result.failure for result in run_page(page, tmp_path) if result.failure is not None]
    assert not failures, "\n\n".join(failures)
