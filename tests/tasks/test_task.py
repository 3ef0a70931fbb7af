"""Load a task and check its templates before any model is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.tasks.task import load_task


def test_default_task_has_configured_sizes() -> None:
    config = load_config(["task.train_size=20", "task.eval_size=5"])
    task = load_task(config.task, config.seed)
    assert (len(task.train), len(task.held_out)) == (20, 5)
    config = load_config(["task.train_size=20", "task.eval_size=5", "task.agents.low.answer='{middle}'"])
    with pytest.raises(ConfigError, match=r"^task\.agents\.low\.answer='\{middle\}' names the field 'middle'"):
        load_task(config.task, config.seed)


@pytest.mark.parametrize("missing", ["train", "eval"])
def test_templates_are_checked_on_both_parts(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    for part in ("train", "eval"):
        row = {"question": "?"} if part == missing else {"prompt": "?"}
        (tmp_path / f"{part}.jsonl").write_text(json.dumps(row) + "\n")
    files = [f"task.{part}={tmp_path}/{part}.jsonl" for part in ("train", "eval")]
    config = load_config(["task=jsonl", "actor=full", "actor.model=x", *files])
    with pytest.raises(ConfigError, match=r"^task\.agents\.solo\.template='\{prompt\}' names the field 'prompt'"):
        load_task(config.task, config.seed)
