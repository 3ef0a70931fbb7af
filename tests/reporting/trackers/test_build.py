"""Trackers' requirements are checked before models load, and trackers receive no secrets."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ippo_cli.compose.load import compose_node, load_config, resolve_config, to_yaml
from ippo_cli.config.errors import ConfigError
from ippo_cli.planning.trial import check_trainable
from ippo_cli.reporting.run_log import RunLog, RunState
from ippo_cli.reporting.trackers.build import check_tracker_usable, plain_settings
from ippo_cli.runs.folder import TRACKER_ID
from ippo_cli.sweeps.population import copy_parent_run


@pytest.mark.parametrize("kind", ["wandb", "mlflow", "trackio"])
def test_missing_package_error_names_the_extra(kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, kind, None)  # as if it were not installed
    config = load_config([f"tracker={kind}", f"output_dir={tmp_path}"])
    for refuse in (
        lambda: check_tracker_usable(config.tracker),
        lambda: check_trainable(config, 1),
        lambda: RunLog(tmp_path, config.tracker, RunState()),
    ):
        with pytest.raises(ConfigError) as raised:
            refuse()
        assert str(raised.value) == (
            f"tracker={kind} needs the package {kind}, which is not installed; run pip install 'ippo-cli[{kind}]'"
        )
    assert not (tmp_path / "run.json").exists()


def test_settings_equal_config_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    from omegaconf import OmegaConf

    monkeypatch.setenv("PIT_API_KEY", "canary-5e1c-71f3")
    plain = resolve_config(compose_node(["tracker=wandb", "rollout.stop_strings=['${oc.env:PIT_API_KEY}']"]))
    shown = plain_settings(load_config(["tracker=wandb", "rollout.stop_strings=['${oc.env:PIT_API_KEY}']"]))
    assert shown == OmegaConf.to_container(OmegaConf.create(to_yaml(plain)), resolve=False)
    assert "canary" not in json.dumps(shown)


def test_copied_run_gets_a_new_tracker_id(tmp_path: Path) -> None:
    parent, child = tmp_path / "1", tmp_path / "2"
    (parent / "checkpoints" / "step_00000001").mkdir(parents=True)
    (parent / "checkpoints" / "step_00000001" / "manifest.json").write_text("{}")
    (parent / "run.json").write_text('{"state": "done"}')
    (parent / TRACKER_ID).write_text("0123456789abcdef\n")
    (parent / "wandb").mkdir()
    copy_parent_run(parent, child)
    assert (child / "checkpoints").is_dir()
    assert not (child / TRACKER_ID).exists()
    assert not (child / "wandb").exists()
