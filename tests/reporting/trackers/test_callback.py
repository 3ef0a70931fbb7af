"""A user's callback receives every row, and its failures are only warnings."""

from __future__ import annotations

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small import rows, train, train_on_two_ranks

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.reporting.run_log import RunLog, RunState
from ippo_cli.reporting.trackers.build import check_tracker_usable
from ippo_cli.reporting.trackers.callback import CallbackTracker, load_callback

KEEPS = "rows_seen = []\n\ndef tell(row):\n    rows_seen.append(row)\n    row['mine'] = 1\n"
FAILS = "def tell(row):\n    if row['iteration'] != 2:\n        raise KeyError('eval/score')\n"


def run_with(folder: Path, code: str) -> tuple[RunLog, Any]:
    """A run whose callback is `tell` in this code, and the module with it."""
    (folder / "mine.py").write_text(code)
    tracker = load_config([f"tracker.callback={folder / 'mine.py'}:tell", "tracker.tensorboard=false"]).tracker
    return RunLog(folder, tracker, RunState()), sys.modules["ippo_user_mine"]


def test_callback_gets_written_rows_with_none_for_non_finite(tmp_path: Path) -> None:
    run, mine = run_with(tmp_path, KEEPS)
    for iteration, seconds in ((1, 0.5), (2, math.nan), (3, math.inf)):
        run.log_row({"iteration": iteration, "time/iteration": seconds})
        assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == iteration
    assert [row["time/iteration"] for row in mine.rows_seen] == [0.5, None, None]
    written = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row | {"mine": 1} for row in written] == mine.rows_seen
    row = {"iteration": 4.0}
    CallbackTracker(f"{tmp_path / 'mine.py'}:tell").log(row, 4)
    assert row == {"iteration": 4.0}, "what it does to a row stays its own"


def test_callback_errors_warn_once_and_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = run_with(tmp_path, FAILS)
    for iteration in range(1, 5):
        run.log_row({"iteration": iteration})
    run.finish("done")
    name = f"tracker.callback={tmp_path / 'mine.py'}:tell"
    assert capsys.readouterr().out.splitlines() == [
        f"warning: {name} fails ({tmp_path}/mine.py:3: KeyError: 'eval/score'); training continues",
        f"warning: {name} has missed 3 of 4 rows, which are all in metrics.jsonl",
    ]
    output = json.loads((tmp_path / "run.json").read_text())
    assert output["state"] == "done"
    assert output["warnings"][name].endswith("; it has missed 3 of 4 rows")
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4


def test_system_exit_in_callback_does_not_end_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_API_KEY", "canary-5e1c-71f3")
    run, _ = run_with(tmp_path, "import os, sys\n\ndef tell(row):\n    sys.exit('no ' + os.environ['MY_API_KEY'])\n")
    run.log_row({"iteration": 1})
    run.finish("done")
    assert "SystemExit: no <MY_API_KEY>); training continues" in capsys.readouterr().out
    assert "canary" not in (tmp_path / "run.json").read_text()


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("def other(row): ...", "names no function in .*; it has: other"),
        ("def tell(): ...", r"cannot be called as function\(row\) .*; let it take these arguments"),
        ("def tell(row, step): ...", r"cannot be called as function\(row\) .*; let it take these arguments"),
        ("async def tell(row): ...", "is async"),
        ("raise ValueError('broken')", "cannot be imported .*mine.py:1: ValueError: broken"),
    ],
)
def test_invalid_callback_is_rejected_before_loading(code: str, rule: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(code)
    tracker = load_config([f"tracker.callback={tmp_path / 'mine.py'}:tell"]).tracker
    with pytest.raises(ConfigError, match=rule) as raised:
        check_tracker_usable(tracker)
    assert str(raised.value).startswith(f"tracker.callback={tmp_path / 'mine.py'}:tell ")
    check_tracker_usable(tracker, loads_code=False)


def test_missing_file_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"points to .*nowhere\.py, which is not a file"):
        check_tracker_usable(replace(load_config().tracker, callback="nowhere.py:tell"))


def test_callables_without_signature_are_accepted() -> None:
    assert load_callback("builtins:print") is print


CLASS = """
import json

class Tracker:
    def __init__(self):
        self.lines = []

    def start(self, folder, settings):
        self.file = folder / "mine.json"
        self.lines.append(["start", settings["name"]])

    def log(self, row):
        self.lines.append(["log", row["iteration"]])

    def log_samples(self, name, rows):
        self.lines.append([name, len(rows)])

    def finish(self, state):
        self.file.write_text(json.dumps([*self.lines, ["finish", state]]))

class Silent:
    pass

class Narrow:
    def log(self):
        pass
"""


def test_class_is_started_and_finished(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CLASS)
    tracker = CallbackTracker(f"{tmp_path / 'mine.py'}:Tracker", tmp_path, {"name": "first"})
    tracker.log({"iteration": 1.0}, 1)
    tracker.log_samples("train_1", [{"text": "a"}])
    tracker.log({"iteration": 2.0}, 2)
    tracker.finish("done")
    lines = json.loads((tmp_path / "mine.json").read_text())
    assert lines == [["start", "first"], ["log", 1.0], ["train_1", 1], ["log", 2.0], ["finish", "done"]]


@pytest.mark.parametrize(
    ("name", "rule"), [("Silent", "has no method log(row)"), ("Narrow", "log cannot be called as function(row)")]
)
def test_class_without_log_is_rejected(name: str, rule: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(CLASS)
    with pytest.raises(ConfigError, match=re.escape(rule)):
        load_callback(f"{tmp_path / 'mine.py'}:{name}")


@pytest.mark.slow
def test_training_run_calls_callback(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(KEEPS)
    folder = train(tmp_path, "num_iterations=2", f"tracker.callback={tmp_path / 'mine.py'}:tell")
    result = sys.modules["ippo_user_mine"].rows_seen  # type: ignore[attr-defined]
    assert [row["iteration"] for row in result] == [row["iteration"] for row in rows(folder)] == [0, 1, 2]


@pytest.mark.slow
def test_only_rank_0_calls_callback(tmp_path: Path) -> None:
    place = tmp_path / "rows_seen"
    (tmp_path / "mine.py").write_text(
        f"import os\n\ndef tell(row):\n    open({str(place)!r}, 'a').write(os.environ['RANK'])\n"
    )
    callback = f"tracker.callback={tmp_path / 'mine.py'}:tell"
    train_on_two_ranks(tmp_path / "runs", "num_iterations=2", "evaluation.greedy=false", callback)
    assert place.read_text() == "000"
