"""Files of the user's."""

from __future__ import annotations

import os
from pathlib import Path

from ippo_cli.tasks.user_code import load_function


def test_a_file_is_run_once_however_often_it_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("loaded = []\n\ndef reward():\n    return loaded\n\ndef make():\n    return loaded\n")
    shared = load_function(f"{file}:reward")()
    assert load_function(f"{file}:reward")() is shared
    assert load_function(f"{file}:make", "task.environment")() is shared


def test_a_file_that_has_changed_is_run_again(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def reward():\n    return 1\n")
    assert load_function(f"{file}:reward")() == 1
    file.write_text("def reward():\n    return 2\n")
    os.utime(file, ns=(1, 1))
    assert load_function(f"{file}:reward")() == 2
