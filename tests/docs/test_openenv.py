"""Examples of docs/openenv.md: commands compose, and the functions convert actions and observations."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import load_config
from ippo_cli.config.checks import check_config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "openenv.md").read_text()
COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    for line in block.replace("\\\n", "").splitlines()
    if line.startswith("ippo-train")
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with the files of the page; the current directory."""
    monkeypatch.chdir(tmp_path)
    for name, text in re.findall(r"```python\n# (\S+\.py)\n(.*?)```", PAGE, re.DOTALL):
        Path(name).write_text(text)
    (tmp_path / "PATH").mkdir()
    return tmp_path


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_command_composes(words: list[str], folder: Path) -> None:
    config = load_config(normalize_arguments(words))
    check_config(config, config.launch.processes)


def test_functions_convert_actions_and_observations(folder: Path) -> None:
    names: dict = {}
    exec((folder / "tools.py").read_text(), names)
    assert names["call_tool"]("echo hello there") == {
        "type": "call_tool",
        "tool_name": "echo",
        "arguments": {"message": "hello there"},
    }
    assert names["call_tool"]("echo") is None
    assert names["describe"]({"result": "hi"}) == "hi"
    assert names["describe"]({}) == "ready"
