"""`hub=modelscope`, with a stand-in for its package: a module that copies a local folder."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from folders import model_folder

from ippo_cli.compose.hub_names import check_hub_access
from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError, PreflightError
from ippo_cli.config.model_hub import download_models
from ippo_cli.config.schema import Config

STAND_IN = """
import shutil
from pathlib import Path

def snapshot_download(model, revision=None):
    source = Path(__file__).parent / "remote" / model
    if not source.is_dir():
        raise ValueError(f"{model} does not exist")
    return shutil.copytree(source, Path(__file__).parent / "cache" / model / (revision or "master"), dirs_exist_ok=True)
"""


def of(*overrides: str) -> Config:
    return load_config(["task=sorting_solo", "actor=full", "hub=modelscope", "actor.model=org/lm", *overrides])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "modelscope.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    model_folder(tmp_path / "remote" / "org" / "lm")
    yield tmp_path
    sys.modules.pop("modelscope", None)


def test_modelscope_names_become_folders(folder: Path) -> None:
    config = of("actor.revision=v2", "actor.tokenizer=org/lm", f"critic.model={folder}")
    check_hub_access(config)
    found = download_models(config).task.agents["solo"]
    assert found.actor.model == str(folder / "cache" / "org" / "lm" / "v2")
    assert found.actor.revision is None
    assert found.actor.tokenizer == str(folder / "cache" / "org" / "lm" / "master")
    assert (Path(found.actor.model) / "model.safetensors").is_file()
    assert found.critic.model == str(folder)  # type: ignore[attr-defined]
    assert config.task.agents["solo"].actor.model == "org/lm"


def test_unknown_modelscope_name(folder: Path) -> None:
    with pytest.raises(
        PreflightError, match=r"actor.model=org/other: ModelScope cannot provide this model .*does not exist"
    ):
        download_models(of("actor.model=org/other"))


def test_modelscope_needs_its_package() -> None:
    with pytest.raises(ConfigError, match=r"hub=modelscope needs the package modelscope; pip install"):
        check_hub_access(of())


def test_huggingface_names_stay() -> None:
    config = of("hub=huggingface")
    assert download_models(config) is config
