"""`ippo-runs`: its lists, errors and exit codes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from run_folders import write_run

from ippo_cli.cli import runs
from ippo_cli.compose import exits
from ippo_cli.config.text import text_width

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Run the command in `tmp_path`; return its exit code, output and error output."""
    monkeypatch.chdir(tmp_path)

    def called(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ippo-runs", *arguments])
        monkeypatch.setattr(exits, "exit_process", sys.exit)
        with pytest.raises(SystemExit) as raised:
            runs.main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(raised.value.code or 0), captured.out, captured.err

    return called


def test_list_newest_first(call: Call, tmp_path: Path) -> None:
    write_run(tmp_path / "outputs", "old", age_days=3, scores={"first": 0.1, "best": 0.9, "last": 0.8})
    write_run(tmp_path / "outputs", "new", state="failed", error="no\x1b[31mred")
    code, output, _ = call()
    lines = output.splitlines()
    assert code == 0
    assert [line.split()[0].split("/")[0] for line in lines[3:5]] == ["new", "old"]
    assert "0.100 -> 0.800  0.900" in lines[4]
    assert " 3 d " in lines[4]
    assert lines[-1].startswith("2 runs, ")
    entries = json.loads(call("json=true", "sort=score")[1])
    assert [(entry["name"], entry["last"]) for entry in entries] == [("old", 0.8), ("new", None)]


@pytest.mark.parametrize("order", ["score", "best"])
def test_scores_that_are_no_finite_numbers_are_last(order: str, call: Call, tmp_path: Path) -> None:
    scores = {"nan": math.nan, "inf": math.inf, "bad": -3.0, "good": 0.5}
    for name, score in scores.items():
        write_run(tmp_path / "outputs", name, scores={"best": score, "last": score})
    write_run(tmp_path / "outputs", "none")
    names = [entry["name"] for entry in json.loads(call("json=true", f"sort={order}")[1])]
    assert names[:2] == ["good", "bad"]


def test_table_is_narrow_and_escaped(call: Call, tmp_path: Path) -> None:
    many = {f"agent_with_a_long_name_{number}": {} for number in range(9)}
    folder = write_run(tmp_path / "outputs", "n" * 60, task={"agents": many, "primary_metric": "sampled/score"})
    (folder / "command.txt").write_text("ippo-train name=\x1b[2J\x07 api_key=sk-aaaaaaaaaaaaaaaaaaaaaaaa " + "x" * 300)
    for command in ((), ("show", str(folder))):
        _, output, _ = call(*command)
        assert max(map(text_width, output.splitlines())) <= 120
        assert "\x1b" not in output
        assert "sk-aaaa" not in output


def test_remove_needs_confirmation(call: Call, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "outputs", "a")
    code, output, _ = call("remove", str(folder))
    assert (code, folder.is_dir()) == (0, True)
    assert f"ippo-runs remove {folder} confirm=true" in output
    assert "would be freed; nothing was removed" in output
    code, output, _ = call("remove", str(folder), "confirm=true")
    assert (code, folder.exists()) == (0, False)
    assert "freed" in output


def test_clean_needs_confirmation(call: Call, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "outputs", "a", state="failed", age_days=8)
    assert "would remove" in call("clean")[1]
    assert "nothing to remove" in call("clean", "older_than_days=9")[1]
    assert folder.is_dir()
    call("clean", "confirm=true")
    assert not folder.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "outputs is not a folder here; name the folder of your runs"),
        (("missing",), "missing is not a folder"),
        (("sort=size_", "."), "sort=size_ is not known; did you mean sort=size?"),
        (("compare", "."), ". names 0 runs; name two runs or more"),
        (("remove",), "RUN is missing"),
        (("remove", "."), "is not a run's folder"),
        (("remove", ".", "confirm=yes"), "confirm=yes is neither true nor false"),
        (("clean", "older_than_days=x"), "older_than_days=x is not a number of days"),
        (("clean", "older_then_days=3"), "closest: older_than_days"),
        (("--force",), "--force is not an option; options are key=value"),
    ],
)
def test_errors(arguments: tuple[str, ...], message: str, call: Call) -> None:
    code, _, error = call(*arguments)
    assert code == 2
    assert message in " ".join(error.split())


def test_compare_begins_with_the_oldest_run(call: Call, tmp_path: Path) -> None:
    for name, day in (("a", "0101"), ("b", "0102")):
        folder = write_run(tmp_path / "outputs", name, algorithm={"gamma": float(day) / 1000})
        folder.rename(folder.parent / f"2026{day}-000000-aaaaaa")
    _, output, _ = call("compare", "outputs")
    assert "A  outputs/a/20260101-000000-aaaaaa" in output
    assert "B  outputs/b/20260102-000000-aaaaaa" in output


def test_show_explains_the_state(call: Call, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "outputs", "a", state="preempted", checkpoints=(2,))
    output = call("show", str(folder))[1]
    assert "preempted: ended by a signal or Ctrl-C, and saved" in output
    assert f"ippo-train resume=outputs/a/{folder.name}\n" in output


def test_list_is_silent_without_a_reader(tmp_path: Path) -> None:
    for number in range(3):
        write_run(tmp_path / "outputs", f"n{number}")
    command = f"{sys.executable} -m ippo_cli runs {tmp_path}/outputs | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_compare_and_show(call: Call, tmp_path: Path) -> None:
    first = write_run(tmp_path / "outputs", "a", scores={"last": 0.5}, checkpoints=(2, 4))
    second = write_run(tmp_path / "outputs", "b", seed=1, algorithm={"advantage": "group", "gamma": 1.0})
    code, output, _ = call("compare", str(first), str(second))
    assert code == 0
    assert "algorithm.advantage  gae  group" in output
    code, output, _ = call("show", str(first))
    assert code == 0
    assert "checkpoints    2 4" in output
    assert f"ippo-train resume=outputs/a/{first.name} num_iterations=MORE" in output
    assert json.loads(call("show", str(first), "json=true")[1])["config"]["name"] == "a"


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from ippo_cli.cli import runs, doctor; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {"torch", "hydra", "yaml", "numpy"} & set(modules) == set()
