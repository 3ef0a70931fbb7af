"""What a run is refused for before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.planning.plan import show_plan
from ippo_cli.planning.trial import check_trainable


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is such a device")
def test_a_device_that_is_not_there_is_told_before_there_is_a_folder() -> None:
    with pytest.raises(PreflightError, match=r"no CUDA device can be used here; use launch\.device=cpu$"):
        check_trainable(load_config(["task=sorting", "launch.device=cuda"]), 1)


@pytest.mark.parametrize("part", [False, True])
def test_rows_that_a_reward_cannot_read_are_told_by_a_plan_and_by_a_run(tmp_path: Path, part: bool) -> None:
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
