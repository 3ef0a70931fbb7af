"""Initial weights: recorded, verified on resume, and vocabularies of critics."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest
import transformers.utils.hub
from folders import model_folder

from ippo_cli.agents.initial import check_vocabularies, pin_revisions, record_path, warm_start_lessons
from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError, ResumeError
from ippo_cli.config.schema import Config
from ippo_cli.runs.folder import reserve_folder
from ippo_cli.tasks.task import load_task
from ippo_cli.training.process import run_training


def full(root: Path, model: Path | str, *overrides: str) -> Config:
    """A loaded configuration of one agent."""
    return load_config(["task=sorting_solo", "actor=full", f"actor.model={model}", f"output_dir={root}", *overrides])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-5] ^= 1
    file.write_bytes(data)


CHANGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "weights": ("model.safetensors", lambda model: flip(model / "model.safetensors")),
    "a tokenizer": ("tokenizer.json", lambda model: flip(model / "tokenizer.json")),
    "a chat template": ("chat_template.jinja", lambda model: (model / "chat_template.jinja").write_text("") and None),
    "a file less": ("generation_config.json", lambda model: (model / "generation_config.json").unlink()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_initial_weights_rejected_on_resume(change: str, tmp_path: Path) -> None:
    model, run = model_folder(tmp_path / "model"), tmp_path / "run"
    run.mkdir()
    config, weights = full(tmp_path, model), {"solo": str(model)}
    assert pin_revisions(config, weights, run) == config
    assert set(json.loads(record_path(run, "solo").read_text())["sha256"]) >= {"model.safetensors", "tokenizer.json"}
    (model / "README.md").write_text("files that are not loaded may change")
    assert pin_revisions(config, weights, run) == config
    name, make = CHANGES[change]
    make(model)
    with pytest.raises(ResumeError, match=f"{name} differs from what this run started with.*start a new run") as raised:
        pin_revisions(config, weights, run)
    assert raised.value.exit_code == 14


def test_changed_frozen_adapter_rejected_on_resume(tmp_path: Path) -> None:
    model, adapter, run = model_folder(tmp_path / "model"), tmp_path / "adapter", tmp_path / "run"
    run.mkdir()
    adapter.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (adapter / name).write_text("as it was")
    lora = ["task=sorting", "actor=lora", f"actor.model={model}", "task.agents.low.frozen=true"]
    config, weights = (
        load_config([*lora, f"task.agents.low.actor.adapter={adapter}"]),
        dict.fromkeys(("low", "high"), model),
    )
    assert pin_revisions(config, weights, run) == config == pin_revisions(config, weights, run)
    (adapter / "adapter_model.safetensors").write_text("as it became")
    with pytest.raises(ResumeError, match=r"adapter_model\.safetensors differs from what this run started with"):
        pin_revisions(config, weights, run)


def test_hub_commit_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = tmp_path / "hub" / "models--some--model"
    for number, commit in enumerate(("a" * 40, "b" * 40)):
        model_folder(repository / "snapshots" / commit, seed=number)
    (repository / "refs").mkdir()
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(transformers.utils.hub, "TRANSFORMERS_CACHE", str(tmp_path / "hub"), raising=False)
    config, weights, run = full(tmp_path, "some/model"), {"solo": "some/model"}, tmp_path / "run"
    run.mkdir()
    for commit in ("a" * 40, "b" * 40):  # the branch has moved before the second call
        (repository / "refs" / "main").write_text(commit)
        assert pin_revisions(config, weights, run).task.agents["solo"].actor.revision == "a" * 40


def critic(root: Path, actor: Path, other: Path, key: str = "model") -> None:
    check_vocabularies(full(root, actor, f"critic.{key}={other}"), {"solo": str(actor)})


def test_critic_of_other_family_rejected(tmp_path: Path) -> None:
    actor = model_folder(tmp_path / "actor")
    for characters in ("ijklmnop", "abcdefghijk"[::-1][:8]):
        other = model_folder(tmp_path / characters, characters)
        for key in ("model", "warm_start"):
            with pytest.raises(ConfigError, match=rf"critic\.{key}=.* has another vocabulary than its actor: 8 of 11"):
                critic(tmp_path, actor, other, key)


def test_critic_with_smaller_embedding_rejected(tmp_path: Path) -> None:
    actor, other = model_folder(tmp_path / "actor"), model_folder(tmp_path / "other", "abcdef")
    with pytest.raises(ConfigError, match="has an embedding of 9 tokens, and its actor's tokenizer has 11"):
        critic(tmp_path, actor, other)


def test_critic_of_same_vocabulary_needs_no_tokenizer(tmp_path: Path) -> None:
    actor, other = model_folder(tmp_path / "actor"), model_folder(tmp_path / "other", seed=1)
    critic(tmp_path, actor, other)
    critic(tmp_path, actor, model_folder(tmp_path / "more", "abcdefghijk", seed=1))
    for file in other.glob("*token*"):
        file.unlink()
    critic(tmp_path, actor, other)


def test_random_play_varies_answers() -> None:
    config = load_config(["task=ladder"])
    task = load_task(config.task, config.seed)
    lessons = warm_start_lessons(["climber"], config, task)
    of_the_first = {tuple(answer for _, answer in lesson) for lesson in lessons[:: len(task.train)]}
    assert len(lessons) == 512
    assert len(of_the_first) > 20, "an example has several answers"


@pytest.mark.slow
def test_changed_reference_rejected_on_resume(tmp_path: Path) -> None:
    model = model_folder(tmp_path / "model", "abcdefghij=")
    config = full(
        tmp_path,
        model,
        "actor.dtype=fp32",
        "num_iterations=1",
        "evaluation.every=0",
        "algorithm.kl.reward.coef=0.1",
        "rollout.buffer_size=8",
        "task.train_size=16",
        "task.eval_size=4",
        "tracker.console=plain",
        "launch.threads=1",
    )
    folder = reserve_folder(tmp_path / "runs")
    run_training(config, folder, resumed=False)
    shutil.copy(model / "model.safetensors", tmp_path / "kept")
    flip(model / "model.safetensors")
    config.num_iterations = 2
    with pytest.raises(ResumeError, match=r"model\.safetensors differs from what this run started with"):
        run_training(config, folder, resumed=True)
    shutil.copy(tmp_path / "kept", model / "model.safetensors")
    run_training(config, folder, resumed=True)
