"""Commands on a run whose folder was copied in part say what is missing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from small import train

from ippo_cli.api.run import Run
from ippo_cli.cli import doctor, report, runs
from ippo_cli.compose.configured import load_run_config
from ippo_cli.config.errors import ResumeError
from ippo_cli.runs.missing_parts import find_missing_parts
from ippo_cli.runs.records import RunRecord


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("whole"), "tracker.samples_every=1")


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def change_state(run: Path, values: dict[str, object]) -> None:
    known = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(known | values))


def cut_file(file: Path, size: int) -> None:
    os.truncate(file, size)


def damage_line(file: Path, place: int) -> None:
    lines = file.read_text().splitlines(keepends=True)
    lines[place] = lines[place][:50] + "\n"
    file.write_text("".join(lines))


def repeat_rows(file: Path) -> None:
    file.write_text(file.read_text() * 2)


def test_whole_run_lacks_nothing(run: Path) -> None:
    assert find_missing_parts(RunRecord(run)) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: cut_file(run / "metrics.jsonl", 3000), r"metrics.jsonl has 1 of 5 rows"),
        (lambda run: (run / "metrics.jsonl").unlink(), r"metrics.jsonl has 0 of 5 rows"),
        (lambda run: damage_line(run / "metrics.jsonl", 3), r"metrics.jsonl is damaged at line 4"),
        (lambda run: repeat_rows(run / "metrics.jsonl"), r"metrics.jsonl repeats iteration 0"),
        (lambda run: (run / "config.yaml").unlink(), r"config.yaml cannot be read"),
        (lambda run: (run / "run.json").write_text("{"), r"run.json cannot be read"),
        (
            lambda run: cut_file(run / "checkpoints/step_00000004/low/actor/model.safetensors", 100),
            r"checkpoints/step_00000004/low/actor/model.safetensors has 100 of ",
        ),
        (
            lambda run: (run / "checkpoints/step_00000004/low/actor/config.json").unlink(),
            r"checkpoints/step_00000004/low/actor/config.json is missing",
        ),
        (
            lambda run: (run / "checkpoints/step_00000004/manifest.json").unlink(),
            r"checkpoints/step_00000004/manifest.json cannot be read",
        ),
        (
            lambda run: shutil.rmtree(run / "checkpoints/step_00000004"),
            r"checkpoints/step_00000004, which latest.json names, is missing",
        ),
        (
            lambda run: cut_file(run / "samples/train_00000002.jsonl", 50),
            r"samples/train_00000002.jsonl ends within a line",
        ),
        (lambda run: cut_file(run / "samples/train_00000002.jsonl", 0), r"samples/train_00000002.jsonl is empty"),
        (lambda run: (run / "samples/train_00000002.jsonl").unlink(), r"samples/train_00000002.jsonl is missing"),
        (
            lambda run: (run / "samples/train_00000002.jsonl").write_text("null\n"),
            r"samples/train_00000002.jsonl has no episodes",
        ),
        (
            lambda run: cut_file(run / "config.yaml", (run / "config.yaml").read_bytes().index(b"\ncritic:")),
            r"config.yaml is not the file that history.jsonl recorded",
        ),
        (lambda run: (run / "overrides.json").write_text("{}"), r"overrides.json cannot be read"),
        (lambda run: (run / "env.json").write_text("[1]"), r"env.json cannot be read"),
        (lambda run: (run / "env.json").unlink(), r"env.json is missing"),
        (lambda run: (run / "command.txt").write_bytes(b"\xf5\x81"), r"command.txt cannot be read"),
        (lambda run: (run / "history.jsonl").write_text("[1]\n"), r"history.jsonl cannot be read: line 1"),
        (lambda run: (run / "checkpoints/latest.json").write_text("[1]"), r"checkpoints/latest.json cannot be read"),
        (lambda run: shutil.rmtree(run / "initial"), r"initial/ is missing"),
        (lambda run: (run / "initial/low.json").unlink(), r"initial/low.json is missing"),
        (lambda run: (run / "initial/low.json").write_text("null"), r"initial/low.json cannot be read"),
        (lambda run: (run / "initial/low/config.json").unlink(), r"initial/low/config.json is missing"),
        (
            lambda run: cut_file(run / "initial/low/model.safetensors", 100),
            r"initial/low/model.safetensors is not the file that the run started with",
        ),
        (
            lambda run: change_state(run, {"warnings": ["a"], "iterations": "3"}),
            r"run.json has no usable value of warnings",
        ),
    ],
)
def test_missing_part_is_named(damage: Callable[[Path], object], message: str, run: Path) -> None:
    damage(run)
    assert any(text.startswith(message) for text in find_missing_parts(RunRecord(run)))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("command.txt", b"\xf5\x81\x00"),
        ("config.yaml", b"\xaa\x81: [1"),
        ("env.json", b"null"),
        ("overrides.json", b'{"a": 1}'),
        ("metrics.jsonl", b'{"iteration": 1, "files": {"a": "b"}}\n'),
        ("metrics.jsonl", b'{"iteration": Infinity}\n'),
        ("metrics.jsonl", b'{"iteration": 1}\n'),
        ("samples/train_00000002.jsonl", b"[1]\n"),
    ],
)
def test_commands_read_runs_with_damaged_files(
    name: str, content: bytes, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / name).write_bytes(content)
    runs.show_command([str(run)])
    assert "incomplete" in capsys.readouterr().out
    report.write_page([str(run), f"to={run / 'page.html'}"])
    assert "is incomplete" in capsys.readouterr().out
    if name == "config.yaml":
        with pytest.raises(ResumeError, match=r"config\.yaml"):
            doctor.report([str(run)])
    else:
        doctor.report([str(run)])
        assert "incomplete" in capsys.readouterr().out


def test_commands_read_a_state_with_values_of_other_types(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {"warnings": ["a"], "warning_iterations": 1, "evaluation": [1], "error": {}, "wall_seconds": "x"}
    change_state(run, {**wrong, "iterations": None})
    for call in (runs.show_command, doctor.report, report.write_page):
        call([str(run)])
        assert "run.json has no usable value of evaluation" in " ".join(capsys.readouterr().out.split())
    assert Run(run).scores == {}


def test_error_of_a_cut_configuration_names_the_file(run: Path) -> None:
    text = (run / "config.yaml").read_text()
    place = text.index("learning_rate: ")
    (run / "config.yaml").write_text(text[: place + len("learning_rate: ")] + "1.0e")
    with pytest.raises(ResumeError, match=r"resumed: config.yaml is not the file that history.jsonl recorded; restore"):
        doctor.report([str(run)])


def test_commands_report_missing_rows(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cut_file(run / "metrics.jsonl", 3000)
    missing = "metrics.jsonl has 1 of 5 rows"
    doctor.report([str(run)])
    shown = capsys.readouterr().out
    assert "done after 4 iterations, of which 0 can be examined" in shown
    assert f"incomplete: {missing}" in shown
    doctor.report([str(run), "json=true"])
    assert json.loads(capsys.readouterr().out)["missing"] == [missing]
    report.write_page([str(run), f"to={run / 'page.html'}"])
    assert f"is incomplete: {missing}" in capsys.readouterr().out
    runs.show_command([str(run)])
    assert missing in capsys.readouterr().out
    runs.list_command([str(run)])
    assert "incomplete" in capsys.readouterr().out
    load_run_config(run, str(run), [])
    assert f"is incomplete: {missing}" in capsys.readouterr().err
    assert Run(run).missing == [missing]
