"""Errors of a run before files are written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.planning.plan import show_plan
from ippo_cli.planning.trial import check_trainable


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device")
def test_missing_device_is_reported_before_folder_exists() -> None:
    with pytest.raises(PreflightError, match=r"no CUDA device is available; use launch\.device=cpu$"):
        check_trainable(load_config(["task=sorting", "launch.device=cuda"]), 1)


@pytest.mark.parametrize("part", [False, True])
def test_unreadable_rows_are_reported_by_plan_and_run(tmp_path: Path, part: bool) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"q": "What?"}\n' * 4)
    code = ["kind: code", "sandbox: unsafe_local", "test: '{tests}'", "prompt: ''", "entry_point: f"]
    typed = [f"reward.{line.replace(': ', '=')}" for line in code[1:]]
    reward = ["reward=mix", f"+reward.parts={{own: {{{', '.join(code)}}}}}"] if part else ["reward=code", *typed]
    config = load_config(
        [
            "task=jsonl",
            f"task.train={rows}",
            f"task.eval={rows}",
            "task.agents={solo: {template: '{q}'}}",
            "actor.alphabet=printable",
            *reward,
        ]
    )
    for refuse in (lambda: check_trainable(config, 1), lambda: show_plan(config)):
        with pytest.raises(ConfigError, match=r"^reward\.test='\{tests\}'"):
            refuse()
