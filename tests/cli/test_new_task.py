"""`--new-task` writes a usable task file and never overwrites a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from ippo_cli.cli.new_task import write_task_file
from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.load import build_config, compose_node, resolve_config
from ippo_cli.compose.user_files import check_user_files
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.tasks.task import load_task


@pytest.mark.parametrize("flag", [["--new-task", "it's here/mine.yaml"], ["--new-task=it's here/mine.yaml"]])
def test_written_task_is_valid(flag: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shlex

    monkeypatch.chdir(tmp_path)
    message = write_task_file(flag)
    assert message is not None
    program, *command = shlex.split(message.splitlines()[-1])
    assert program == "ippo-train"
    overrides = normalize_arguments(command)
    check_user_files(overrides)
    config = build_config(resolve_config(compose_node(overrides)))
    check_config(config, 1)
    task = load_task(config.task, 0)
    assert list(config.task.agents) == ["solver", "checker"]
    held_out = {row["question"] for row in task.held_out}
    assert len(task.train) == 80
    assert {row["verdict"] for row in task.held_out} == {row["verdict"] for row in task.train} == {"yes", "no"}
    wrong = [row["claim"] for row in task.train if row["claim"] != row["question"] + row["answer"]]
    assert wrong == [row["claim"] for row in task.train if row["verdict"] == "no"]
    assert len(held_out) == 20
    assert held_out.isdisjoint(row["question"] for row in task.train)


@pytest.mark.parametrize("existing", ["mine.yaml", "mine_train.jsonl", "mine_eval.jsonl"])
def test_existing_files_not_overwritten(existing: str, tmp_path: Path) -> None:
    (tmp_path / existing).write_text("mine")
    with pytest.raises(ConfigError, match=f"would overwrite .*{existing}"):
        write_task_file(["--new-task", str(tmp_path / "mine.yaml")])
    assert [path.name for path in tmp_path.iterdir()] == [existing]
    assert (tmp_path / existing).read_text() == "mine"


@pytest.mark.parametrize("typed", [["--new-task"], ["--new-task="], ["--new-task", "-m"], ["--new-task", "mine.txt"]])
def test_file_name_required(typed: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"must name a new \.yaml file; .*mine\.yaml"):
        write_task_file(typed)


def test_no_flag_writes_nothing() -> None:
    assert write_task_file(["seed=1", "task=sorting"]) is None
