"""Paths and `${` in typed values and in users' YAML files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import compose_node, from_yaml, load_config, resolve_config, to_yaml
from ippo_cli.compose.user_files import check_user_files
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.secrets import mask_secrets

TASK = """defaults:
  - /base/jsonl@_here_
  - _self_
train: [rows.jsonl, 'more*.jsonl']
eval: some/hub-dataset
map: code.py:f
agents:
  solo: {template: "Cost ${x} ${{y}} {q}", answer: "{a}", system: null}
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in ("task", "sub"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.yaml").write_text(TASK)
        for name in ("rows.jsonl", "more1.jsonl"):
            (tmp_path / folder / name).write_text("{}\n")
        (tmp_path / folder / "code.py").write_text("def f(row):\n    return row\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def load(*typed: str) -> Any:
    overrides = normalize_arguments([*typed, "actor=full", "actor.model=some/model"])
    return load_config([text for text in overrides if not text.startswith("--")]).task


@pytest.mark.parametrize("folder", ["task", "sub"])
def test_paths_in_a_task_file_are_relative_to_it(folder: str, files: Path) -> None:
    task = load(f"task={folder}/mine.yaml")
    assert task.train == [str(files / folder / "rows.jsonl"), str(files / folder / "more*.jsonl")]
    assert (task.eval, task.map) == ("some/hub-dataset", f"{files / folder / 'code.py'}:f")


def test_paths_relative_to_the_working_directory(files: Path) -> None:
    (files / "here.jsonl").write_text("{}\n")
    (files / "sub" / "mine.yaml").write_text(TASK.replace("rows.jsonl", "here.jsonl"))
    assert load("task=sub/mine.yaml").train[0] == str(files / "here.jsonl")
    assert load("task=sub/mine.yaml", "task.train=here.jsonl").train == str(files / "here.jsonl")


def test_typed_folders_and_functions_are_absolute(files: Path) -> None:
    for name in ("stage1", "initial", "clip"):
        (files / name).mkdir()
    overrides = normalize_arguments(
        [
            "task=sub/mine.yaml",
            "actor=lora",
            "actor.model=some/model",
            "actor.adapter=stage1",
            "actor.reference=stage1",
            "reward.processor=[clip,sub/code.py:f]",
            "tracker.callback=sub/code.py:f",
        ]
    )
    config = load_config(overrides)
    actor, function = config.task.agents["solo"].actor, f"{files / 'sub' / 'code.py'}:f"
    assert (actor.adapter, actor.reference) == (str(files / "stage1"), str(files / "stage1"))  # type: ignore[attr-defined]
    assert (config.reward.processor, config.tracker.callback) == (["clip", function], function)
    assert load_config(normalize_arguments(["actor.reference=initial"])).actor.reference == "initial"


def test_reward_models_are_folders_and_judges_names(files: Path) -> None:
    (files / "judge").mkdir()
    model = load_config(["reward=model", "reward.model=judge"]).reward
    judge = load_config(["reward=judge", "reward.model=judge"]).reward
    parts = "reward.parts={a:{kind:model,model:judge},b:{kind:judge,model:judge}}"
    mix = load_config(normalize_arguments(["reward=mix", parts])).reward
    assert (model.model, judge.model) == (str(files / "judge"), "judge")  # type: ignore[attr-defined]
    assert [part.model for part in mix.parts.values()] == [str(files / "judge"), "judge"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("folder", ["task", "sub"])
def test_dollar_in_a_template_of_a_file_is_text(folder: str, files: Path) -> None:
    assert load(f"task={folder}/mine.yaml").agents["solo"].template == "Cost ${x} ${{y}} {q}"


@pytest.mark.parametrize(
    ("typed", "template"),
    [
        ("Cost ${x}: {q}", "Cost ${x}: {q}"),
        ("${q}", "${q}"),
        ("${name}: ${q}", "${name}: ${q}"),
        ("seed ${seed}: {q}", "seed 42: {q}"),
        ("'a ${{x}} {q}'", "a ${{x}} {q}"),
        ("jinja:${{ q }} ${x}", "jinja:${{ q }} ${x}"),
        (r"\${oc.env:HOME} {q}", "${oc.env:HOME} {q}"),
        ("${task.agents.solo.answer}", "{a}"),
        (r"\frac{{1}}{{2}} $ {q}", r"\frac{{1}}{{2}} $ {q}"),
    ],
)
def test_dollar_in_a_typed_template_is_text(typed: str, template: str, files: Path) -> None:
    overrides = ["task=sub/mine.yaml", "seed=42", f"task.agents.solo.template={typed}"]
    assert load(*overrides).agents["solo"].template == template
    assert normalize_arguments(once := normalize_arguments(overrides)) == once
    if not typed.startswith("'"):
        named = "task.agents={solo:{template:'" + typed + "',answer:'{a}'}}"
        assert load("task=sub/mine.yaml", "seed=42", named).agents["solo"].template == template


@pytest.mark.parametrize("place", ["a,b.jsonl", "d,e/x.jsonl", "a=b.jsonl", "x (1).jsonl", "[1].jsonl", "ü 'n.jsonl"])
def test_typed_paths_with_signs(place: str, files: Path) -> None:
    (files / place).parent.mkdir(exist_ok=True)
    (files / place).write_text("{}\n")
    assert load("task=sub/mine.yaml", f"task.train={place}").train == str(files / place)


def test_latin_1_yaml_is_refused_with_its_place(files: Path) -> None:
    (files / "sub" / "mine.yaml").write_text(TASK + "# caf\xe9\n", encoding="latin-1")
    overrides = normalize_arguments(["task=sub/mine.yaml"])
    with pytest.raises(ConfigError, match=r"mine\.yaml cannot be read \(byte 0xe9 at character 6 of line 9 is"):
        check_user_files(overrides)


def test_run_folder_keeps_dollar_signs(files: Path) -> None:
    overrides = normalize_arguments(["task=sub/mine.yaml", "actor=full", "actor.model=some/model"])
    plain = resolve_config(compose_node(overrides))
    (files / "config.yaml").write_text(to_yaml(plain))
    assert from_yaml(files / "config.yaml").task.agents["solo"].template == "Cost ${x} ${{y}} {q}"
    plain["task"]["agents"]["solo"]["template"] = "{q}"
    assert to_yaml(plain) == OmegaConf.to_yaml(OmegaConf.create(mask_secrets(plain)))


def test_processors_are_found_from_any_folder(files: Path) -> None:
    (files / "scale").write_text("")  # a file with the name of a step
    (files / "steps.py").write_text("def halve(score):\n    return score / 2\n")
    (one,) = normalize_arguments(["reward.processor=[scale,steps.py:halve]"])
    assert load_config([one]).reward.processor == ["scale", f"{files}/steps.py:halve"]
    assert load_config(["reward.processor=[scale,steps.py:halve]"]).reward.processor[1] == f"{files}/steps.py:halve"


@pytest.mark.parametrize(
    ("key", "value", "full"),
    [
        ("tracker.callback", "task/code.py:f", True),
        ("actor.adapter", "task", True),
        ("task.agents.low.actor.reference", "task", True),
        ("actor.reference", "base", False),
        ("tracker.callback", "task:f", False),
    ],
)
def test_keys_that_name_files_or_folders(key: str, value: str, full: bool, files: Path) -> None:
    (files / "base").mkdir()
    assert normalize_arguments([f"{key}={value}"]) == [f"{key}={files / value}" if full else f"{key}={value}"]
