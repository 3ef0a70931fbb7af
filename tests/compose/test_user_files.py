"""Errors in user files name file, line, key and remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.exits import run_guarded
from ippo_cli.compose.load import build_config, compose_node, config_dir, resolve_config
from ippo_cli.compose.user_files import check_user_files, find_key_location
from ippo_cli.config.errors import ConfigError

TASK = """\
defaults:
  - /schema/task_jsonl@_here_
  - /base/jsonl@_here_
  - _self_
"""
AGENT = "agents:\n  solo:\n    template: "
GLOBAL = "# @package _global_\ndefaults:\n  - override /task: sorting_solo\n"


def refused(group: str, text: str, folder: Path) -> str:
    (folder / group).mkdir()
    (folder / group / "mine.yaml").write_text(text)
    plus = "+" if group == "experiment" else ""
    with pytest.raises(ConfigError) as raised:
        check_user_files(normalize_arguments([f"--config-dir={folder}", f"{plus}{group}=mine"]))
    message = str(raised.value)
    assert message.startswith(f"{folder}/{group}/mine.yaml")
    assert len(message.replace(str(folder), "")) < 1100
    return message.removeprefix(f"{folder}/{group}/mine.yaml, ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TASK + "agents:\n  solo: {templte: x}\n", "line 6: agents.solo.templte is not a key of an agent (closest: t"),
        (TASK + "agent:\n  solo: {}\n", "line 5: agent is not a key of task= (closest: agents)"),
        (TASK + "eval_sise: 3\n" + AGENT + "x\n", "line 5: eval_sise is not a key of task= (closest: eval"),
        (
            TASK + AGENT + "{q}\n",
            'line 7: agents.solo.template: {q} is a mapping, and must be text; put quotes around it: template: "{q}"',
        ),
        (TASK + AGENT + "{q} is it?\n", "line 7: template: {q} is it? is invalid YAML"),
        (TASK + AGENT + "Q: {q}\n", "line 7: template: Q: {q} is invalid YAML"),
        (TASK + "agents:\n  - solo\n", "line 5: agents is a list, and must be named agents; add one line per agent"),
        (TASK + "agents:\n  solo: hello\n", "line 6: agents.solo is 'hello', and must be an agent"),
        (TASK + "agents:\n  solo: {answer: x}\n", "line 6: agents.solo.template is missing; give the prompt"),
        (TASK + "agents: {}\n", "line 5: agents is empty"),
        (TASK, "line 1: agents are missing"),
        (TASK + "eval_size: many\n" + AGENT + "x\n", "line 5: eval_size is 'many'; it must be a whole number"),
        (TASK + AGENT + "x\n    actor: {lerning_rate: 1}\n", "line 8: agents.solo.actor.lerning_rate is"),
        (TASK + AGENT + "x\n    actor: {learning_rate: abc}\n", "line 8: agents.solo.actor.learning_rate is 'abc'"),
        (AGENT + "x\n", "line 1: kind is missing, so that keys cannot be checked; add the line 'kind: NAME'"),
        (
            TASK.replace("_jsonl", "_jsnol"),
            "line 2: /schema/task_jsnol@_here_ names no existing option (closest: task_jsonl)",
        ),
        (TASK.replace("/base/jsonl", "/base/jsn"), "line 3: /base/jsn@_here_ names no existing option"),
        ("defaults: sorting\n", "line 1: defaults is not a list"),
        (TASK + "agents:\n\tsolo: {}\n", "line 6: solo: {} begins with a tab; indent with spaces"),
        (TASK + "eval_size: 3\neval_size: 4\n" + AGENT + "x\n", "line 6: eval_size occurs twice; first in line 5"),
        (TASK + 'agents:\n  solo: {template: "x"\n', 'line 6: solo: {template: "x" is invalid YAML'),
        ("a: [1\n", "line 1: a: [1 is invalid YAML (expected ',' or ']', but the file ends)"),
        ("agents: agents:\n", "line 1: agents: agents: is invalid YAML"),
        ("- a\n", "line 1: - a is not a mapping"),
        ("defaults:\n  - sorting\n  - _self_\nlenght: 4\n", "line 4: lenght is not a key of task= (closest: length)"),
    ],
    ids=lambda value: value[:40] if value.startswith("line") else "",
)
def test_mistakes_in_task_file(text: str, message: str, tmp_path: Path) -> None:
    assert message in refused("task", text, tmp_path)


@pytest.mark.parametrize(
    ("group", "text", "message"),
    [
        ("algorithm", "defaults:\n  - ppo\n  - _self_\nclip_range_lo: 0.1\n", "line 4: clip_range_lo is not a key of"),
        ("algorithm", "defaults:\n  - ppo\n  - _self_\nkl: {reward: {target: abc}}\n", "line 4: kl.reward.target is"),
        ("algorithm", "defaults:\n  - pppo\n  - _self_\n", "line 2: pppo names no existing option (closest: ppo)"),
        (
            "reward",
            "defaults:\n  - /schema/reward_function@_here_\n  - _self_\nkind: functoin\n",
            "line 4: kind is 'functoin'; it must be one of code code_pair",
        ),
        ("experiment", GLOBAL + "sede: 4\n", "line 4: sede is not a key of a run (closest: seed)"),
        ("experiment", GLOBAL + "rollout: {bufer_size: 4}\n", "line 4: rollout.bufer_size is not a key of rollout="),
        ("experiment", GLOBAL + "  - override /critic: value_hed\n", "line 4: override /critic: value_hed names"),
    ],
    ids=lambda value: value[:40] if value.startswith("line") else "",
)
def test_mistakes_in_files_of_other_groups(group: str, text: str, message: str, tmp_path: Path) -> None:
    assert message in refused(group, text, tmp_path)


def test_binary_and_empty_files(tmp_path: Path) -> None:
    assert "is empty; create a file with ippo-train --new-task FILE" in refused("task", "# nothing\n", tmp_path)
    (tmp_path / "task" / "mine.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"cannot be read .*UTF-8"):
        check_user_files(normalize_arguments([f"--config-dir={tmp_path}", "task=mine"]))


@pytest.mark.parametrize(
    "text", ["a: [1\n", "agents:\n\tsolo: x\n", "a: {b: 1\n", "agents: agents:\n", "a: 1\na: 2\n", "", "# empty\n"]
)
@pytest.mark.parametrize("more", [[], ["+task.agents.a.template=x"], ["sead=1"]], ids=["alone", "agent", "typo"])
def test_invalid_yaml_ends_with_one_error_and_exit_code_2(
    text: str, more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    typed = [f"task={tmp_path}/mine.yaml", *more]
    assert run_guarded(lambda: check_user_files(normalize_arguments(typed)), typed, ()) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"ippo: {tmp_path}/mine.yaml")
    assert "Traceback" not in shown


def test_unknown_key_in_a_file_is_reported_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text(TASK + "agents:\n  solo: {templte: x}\n")
    typed = [f"task={tmp_path}/mine.yaml", "task.agents.solo.answer=x", "sead=1"]
    assert run_guarded(lambda: check_user_files(normalize_arguments(typed)), typed, ()) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("ippo: 2 mistakes")
    assert "templte is not a key" in shown
    assert "sead=1 is not a key" in shown
    assert "ConfigKeyError" not in shown


def test_file_with_name_of_builtin_option(tmp_path: Path) -> None:
    assert "has the name of the built-in task=jsonl, which would be used instead" in refused_as("jsonl", tmp_path)


def refused_as(name: str, folder: Path) -> str:
    (folder / f"{name}.yaml").write_text(TASK + AGENT + "x\n")
    with pytest.raises(ConfigError) as raised:
        check_user_files(normalize_arguments([f"task={folder}/{name}.yaml"]))
    return str(raised.value)


def test_mistake_in_base_file(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "first.yaml").write_text(TASK + "agents:\n  solo: {templte: x}\n")
    (tmp_path / "task" / "second.yaml").write_text("defaults:\n  - first\n  - _self_\neval_size: 3\n")
    with pytest.raises(ConfigError, match=r"first\.yaml, line 6: agents\.solo\.templte"):
        check_user_files(normalize_arguments([f"task={tmp_path}/task/second.yaml"]))


def test_builtin_files_pass_as_user_files(tmp_path: Path) -> None:
    names = []
    for file in sorted(config_dir().glob("*/*.yaml")):
        if file.parent.name not in ("base", "schema"):
            (tmp_path / file.parent.name).mkdir(exist_ok=True)
            (tmp_path / file.parent.name / f"my_{file.name}").write_text(file.read_text())
            names.append(f"{file.parent.name}=my_{file.stem}")
    experiments = [name for name in names if name.startswith("experiment=")]  # a run has one
    others = [name for name in names if name not in experiments]
    for chosen in (others, *([name] for name in experiments)):
        check_user_files(normalize_arguments([f"--config-dir={tmp_path}", *chosen]))
    assert len(names) > 20


def test_file_based_on_environment_uses_its_schema(tmp_path: Path) -> None:
    start = "defaults: [/base/gymnasium, _self_]\nagents: {me: {template: '{observation}>'}}\n"
    (tmp_path / "mine.yaml").write_text(start + "env_id: FrozenLake-v1\n")
    check_user_files(normalize_arguments([f"task={tmp_path}/mine.yaml"]))
    (tmp_path / "mine.yaml").write_text(start + "env: FrozenLake-v1\n")
    with pytest.raises(ConfigError, match=r"mine.yaml, line 3: env is not a key of task= \(closest: env_id\)"):
        check_user_files(normalize_arguments([f"task={tmp_path}/mine.yaml"]))


def test_valid_user_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        TASK + "eval_size: 1_0\ntrain: [a.jsonl, b.jsonl]\n" + AGENT + '"{q}: ${seed}"\n'
    )
    overrides = normalize_arguments([f"task={tmp_path}/mine.yaml", "seed=5"])
    check_user_files(overrides)
    made = build_config(resolve_config(compose_node(overrides))).task
    assert (made.agents["solo"].template, made.agents["solo"].system, made.agents["solo"].answer) == (
        "{q}: 5",
        None,
        None,
    )
    assert made.train == ["a.jsonl", "b.jsonl"]  # type: ignore[attr-defined]


def test_find_key_location(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(TASK + "eval_size: -1\n" + AGENT + "x\n")
    overrides = normalize_arguments([f"task={tmp_path}/mine.yaml"])
    shown = os.path.relpath(tmp_path / "mine.yaml") if tmp_path.is_relative_to(Path.cwd()) else tmp_path / "mine.yaml"
    assert find_key_location("task.eval_size", overrides) == f"{shown}, line 5"
    assert find_key_location("task.agents.solo.template", overrides) == f"{shown}, line 8"
    assert find_key_location("task.eval_size", [*overrides, "task.eval_size=-1"]) is None
    assert find_key_location("task.train", overrides) is None
    assert find_key_location("seed", overrides) is None
