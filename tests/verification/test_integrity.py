"""Edits of a run's files are found without executing anything."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ippo_cli.runs.folder import PARENT
from ippo_cli.runs.history import HISTORY, extend_chain
from ippo_cli.verification.integrity import check_files, uncovered_iterations
from ippo_cli.verification.recorded import RecordedRun

Edit = Callable[[Path], object]


def differences(folder: Path) -> list[str]:
    return [str(difference) for check in check_files(RecordedRun(folder)) for difference in check.differences]


def replace_text(name: str, old: str, new: str) -> Edit:
    """Return an edit that replaces the first match of a pattern."""

    def edit(folder: Path) -> None:
        text = (folder / name).read_text()
        edited = re.sub(old, new, text, count=1)
        assert edited != text
        (folder / name).write_text(edited)

    return edit


def edit_state(change: Callable[[dict[str, Any]], object]) -> Edit:
    """Return an edit of `run.json`."""

    def edit(folder: Path) -> None:
        state = json.loads((folder / "run.json").read_text())
        change(state)
        (folder / "run.json").write_text(json.dumps(state))

    return edit


def flip_byte(name: str, place: int) -> Edit:
    def edit(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[place] ^= 1
        (folder / name).write_bytes(data)

    return edit


def test_unchanged_run_has_no_differences(run_copy: Path):
    run = RecordedRun(run_copy)
    assert differences(run_copy) == []
    assert {check.subject: check.count for check in check_files(run)} == {
        "checkpoints": 2,
        "initial models": 1,
        "opponent snapshots": 0,
        "input files": 0,
        "metric rows": 4,
        "sample files": 5,
        "history lines": 5,
        "scores of run.json": 3,
    }
    assert uncovered_iterations(run) == []


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (
            flip_byte("checkpoints/step_00000002/solo/actor/model.safetensors", -3),
            r"checkpoints/step_00000002: solo/actor/model.safetensors has changed",
        ),
        (
            replace_text("samples/train_00000001.jsonl", r'"score": [\d.]+', '"score": 0.987'),
            r"samples/train_00000001.jsonl: is not the file that history.jsonl, line 3 recorded",
        ),
        (
            replace_text("metrics.jsonl", r'("solo/policy/entropy": \d)\.\d', r"\1.77"),
            r"metrics.jsonl, line 2: the row of iteration 1 is not the one",
        ),
        (
            replace_text("metrics.jsonl", r'("time/update": \d)\.\d', r"\1.77"),
            r"metrics.jsonl, line 2: the row of iteration 1 is not the one",
        ),
        (
            lambda folder: (folder / "metrics.jsonl").write_text(
                "".join((folder / "metrics.jsonl").read_text().splitlines(keepends=True)[:2])
            ),
            r"metrics.jsonl, iteration 2: the row is missing",
        ),
        (
            replace_text("metrics.jsonl", r"\}\n", "}\n{oops\n"),
            r"metrics.jsonl, line 2: is not a complete JSON object",
        ),
        (lambda folder: (folder / "samples/eval_00000000.jsonl").unlink(), r"samples/eval_00000000.jsonl: is missing"),
        (
            lambda folder: (folder / "samples/eval_00000001.jsonl").write_text("{}\n"),
            r"samples/eval_00000001.jsonl: the run recorded no such file",
        ),
        (
            replace_text("config.yaml", r"learning_rate: [\d.e-]+", "learning_rate: 0.9"),
            r"config.yaml: is not the file",
        ),
        (
            flip_byte("initial/solo/model.safetensors", -3),
            r"initial/solo.json, model.safetensors: .*model.safetensors has changed",
        ),
        (
            replace_text("run.json", r'("score": )[\d.]+', r"\g<1>0.99"),
            r"run.json, evaluation.first.score: is 0.99",
        ),
        (
            edit_state(lambda state: state["evaluation"]["best"].update(iteration=1)),
            r"run.json, evaluation.best.[\w/]+: is [\d.]+, and metrics.jsonl, line 2 has no such number",
        ),
        (
            edit_state(lambda state: state["evaluation"]["best"].update(iteration=99, score=0.999)),
            r"run.json, evaluation.best.iteration: is 99, and by metrics.jsonl the best evaluation is after",
        ),
        (
            edit_state(lambda state: state["evaluation"].update(last=state["evaluation"]["first"])),
            r"run.json, evaluation.last.iteration: is 0, and by metrics.jsonl the last evaluation is after iteration 3",
        ),
        (
            edit_state(lambda state: state["evaluation"].pop("best")),
            r"run.json, evaluation.best.iteration: is missing, and by metrics.jsonl",
        ),
        (
            edit_state(lambda state: state.update(iterations=100)),
            r"run.json, iterations: is 100, and the last row is of iteration 3",
        ),
        (lambda folder: shutil.rmtree(folder / "initial"), r"initial: has no record of an initial model"),
        (
            replace_text("initial/solo.json", r'"sha256": \{[^}]*\}', '"sha256": {}'),
            r"initial/solo.json: has neither hashes nor a commit",
        ),
        (
            replace_text(HISTORY, r'("row": ")\w', r"\1z"),
            r"history.jsonl, line 2: has been edited",
        ),
        (
            lambda folder: (folder / HISTORY).unlink(),
            r"history.jsonl: has no line with the chain of checkpoints/step_00000002",
        ),
        (replace_text(HISTORY, r"\n", "\noops\n"), r"history.jsonl: line 2 is not a line of a history"),
    ],
)
def test_an_edit_is_found(edit: Edit, expected: str, run_copy: Path):
    edit(run_copy)
    found = differences(run_copy)
    assert any(re.match(expected, line) for line in found), found


def test_a_recomputed_chain_contradicts_the_checkpoints(run_copy: Path):
    replace_text("metrics.jsonl", r'("solo/policy/entropy": \d)\.\d', r"\1.77")(run_copy)
    rows = (run_copy / "metrics.jsonl").read_text().splitlines(keepends=True)
    from ippo_cli.runs.history import hash_text

    chain, lines = "", []
    for line in map(json.loads, (run_copy / HISTORY).read_text().splitlines()):
        del line["chain"]
        if "row" in line:
            line["row"] = hash_text(rows[line["iteration"]])
        chain = extend_chain(chain, line)
        lines.append(json.dumps({**line, "chain": chain}) + "\n")
    (run_copy / HISTORY).write_text("".join(lines))
    (first, second) = differences(run_copy)
    assert "no line with the chain of checkpoints/step_00000002" in first
    assert "no line with the chain of checkpoints/step_00000003" in second


def test_changed_and_missing_input_files_are_found(run_copy: Path, tmp_path: Path):
    code = tmp_path / "reward.py"
    code.write_text("x")
    (run_copy / "inputs.json").write_text(json.dumps({str(code): {"key": "reward.function", "sha256": "0"}}))
    assert differences(run_copy) == [f"inputs.json, reward.function: {code} has changed"]
    code.unlink()
    assert differences(run_copy) == [f"inputs.json, reward.function: {code} is missing"]


def test_a_run_without_history_is_not_covered(run_copy: Path):
    (run_copy / HISTORY).unlink()
    for state in run_copy.glob("checkpoints/*/state.json"):
        state.write_text(re.sub(r',\s*"history": "\w+"', "", state.read_text()))
    assert uncovered_iterations(RecordedRun(run_copy)) == [0, 1, 2, 3]
    assert all("state.json has changed" in line for line in differences(run_copy))


def test_samples_of_the_parent_of_a_copied_run_may_be_missing(run_copy: Path):
    for file in run_copy.glob("samples/*"):
        file.unlink()
    assert len(differences(run_copy)) == 5
    (run_copy / PARENT).write_text('{"run": "a", "iteration": 2}')
    assert {line.partition(":")[0] for line in differences(run_copy)} == {
        "samples/train_00000003.jsonl",
        "samples/eval_00000003.jsonl",
    }


def test_scores_that_a_killed_run_did_not_write_are_no_difference(run_copy: Path):
    edit_state(lambda state: state.update(state="running", iterations=2))(run_copy)
    edit_state(lambda state: state["evaluation"].update(last=state["evaluation"]["first"]))(run_copy)
    assert differences(run_copy) == []
