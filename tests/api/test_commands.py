"""`python -m ippo_cli` runs every command of pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ippo_cli.__main__ import COMMANDS

ROOT = Path(__file__).parents[2]


def test_commands_are_those_of_the_package():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert {f"ippo-{name}": f"{module}:main" for name, module in COMMANDS.items()} == scripts


@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (["--version"], "ippo-train"),
        (["train", "--version"], "ippo-train"),
        (["eval", "--version"], "ippo-eval"),
        (["verify", "--version"], "ippo-verify"),
    ],
)
def test_first_argument_selects_the_command(arguments: list[str], first: str):
    done = subprocess.run([sys.executable, "-m", "ippo_cli", *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[0]) == (0, first)
