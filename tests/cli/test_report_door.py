"""`ippo-report` on the command line: help, options, errors, and files."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from synthetic import write_run

from ippo_cli.cli import report
from ippo_cli.compose import exits

Call = Callable[..., tuple[int, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command in this process; return its exit code and its output."""

    def called(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["ippo-report", *arguments])
        monkeypatch.setattr(exits, "exit_process", sys.exit)
        with pytest.raises(SystemExit) as raised:
            report.main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return int(raised.value.code or 0), " ".join((captured.out + captured.err).split())

    return called


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_run(tmp_path / "runs" / "a", iterations=5, files=1, episodes_per_file=2)


def test_help_without_arguments(call: Call) -> None:
    for arguments in ((), ("--help",)):
        code, output = call(*arguments)
        assert (code, output.startswith("ippo-report: write one HTML page")) == (0, True)


def test_page_of_one_run(call: Call, run: Path) -> None:
    code, output = call(str(run))
    assert code == 0
    assert f"{run}/report.html" in output
    assert "<!doctype html>" in (run / "report.html").read_text()


def test_unreadable_run_is_skipped_with_a_warning(call: Call, run: Path) -> None:
    damaged = run.parent / "b"
    damaged.mkdir()
    (damaged / "run.json").write_text('{"iterations": 3}')
    code, output = call(str(run.parent))
    assert code == 0
    assert f"warning: {damaged} is not a run's folder: run.json has no key state; the report is without it" in output
    code, output = call(str(damaged))
    assert (code, "run.json has no key state" in output) == (14, True)


def test_options(call: Call, run: Path, tmp_path: Path) -> None:
    code, _ = call(str(run.parent), f"to={tmp_path}/out/", "title=a & b", "--csv", "--markdown", "--latex")
    assert code == 0
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        f"report.{end}" for end in ("csv", "html", "md", "tex")
    ]
    assert "<title>a &amp; b</title>" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("to=x.html",), "RUN is missing; use a run's folder"),
        (("{run}", "too=x"), "too=x is not an option of ippo-report (closest: to); use to=FILE, title=TEXT, --png"),
        (("{run}", "--pdf"), "--pdf is not an option of ippo-report"),
        (("{run}", "to="), "to= is not an option of ippo-report"),
        (("{run}/samples",), "contains no run (run.json)"),
        (("absent",), "absent is not a folder"),
    ],
)
def test_wrong_input_is_refused(arguments: tuple[str, ...], message: str, call: Call, run: Path) -> None:
    code, output = call(*(text.replace("{run}", str(run)) for text in arguments))
    assert code == 2
    assert message in output
    assert not (run / "report.html").exists()


def test_command_does_not_import_torch(run: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from ippo_cli.cli.report import write_page; "
        f"write_page([{str(run)!r}]); print('torch' in sys.modules)"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert time.monotonic() - started < 30
