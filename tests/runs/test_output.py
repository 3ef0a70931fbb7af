"""Closed standard output, and repeated Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ippo_cli.runs import handlers
from ippo_cli.runs.handlers import InterruptCounter, handle_signals
from ippo_cli.runs.signals import PreemptionHandler

LINES = """
import sys
from ippo_cli.runs.output import OutputClosed, flush_output, ignore_closed_output, detect_closed_output
detect_closed_output()
{before}
try:
    for number in range(20_000):
        print(number, flush=number % 100 == 0)
    flush_output()
except OutputClosed:
    print("ended", file=sys.stderr)
    sys.exit(141)
print("done", file=sys.stderr)
"""


def piped(program: str) -> tuple[int, str]:
    """Exit code and stderr of a Python program of whose output one line is read."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    printed = process.stderr.read()
    return process.wait(timeout=60), printed


def test_command_exits_quietly_without_reader() -> None:
    assert piped(LINES.format(before="")) == (141, "ended\n")


def test_training_continues_without_reader() -> None:
    code, text = piped(LINES.format(before="ignore_closed_output()"))
    assert code == 0
    assert text == "ippo: the output has no reader any more; training continues\ndone\n"


def test_help_without_reader() -> None:
    program = "import sys; sys.argv[1:] = ['--help']\nfrom ippo_cli.cli.train import main\nmain()"
    code, result = piped(program)
    assert code in (0, 141)  # output that fits into the pipe is written before the reader exits
    assert result == ""


def test_other_closed_pipe_is_not_a_closed_output() -> None:
    program = (
        "import os\nfrom ippo_cli.runs.output import detect_closed_output\ndetect_closed_output()\n"
        "one, two = os.pipe(); os.close(one)\nprint('first', flush=True)\n"
        "try:\n    os.write(two, b'x')\nexcept BrokenPipeError:\n    raise SystemExit(3)"
    )
    assert piped(program)[0] == 3


def test_two_quick_interrupts_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupts = InterruptCounter()
    interrupts.record()
    interrupts.record()
    assert not interrupts.is_repeated
    monkeypatch.setattr(handlers, "INTERRUPT_DEBOUNCE_S", 0.05)
    time.sleep(0.06)
    interrupts.record()
    assert interrupts.is_repeated


def test_run_survives_quick_interrupts_but_not_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with PreemptionHandler() as preemption:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
        assert preemption.is_interrupted
        assert not preemption.is_interrupted_twice
        monkeypatch.setattr(handlers, "INTERRUPT_DEBOUNCE_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert preemption.is_interrupted_twice


def test_closed_terminal_preempts_run() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests may run with nohup
    try:
        with PreemptionHandler() as preemption:
            os.kill(os.getpid(), signal.SIGHUP)
            assert preemption.received_signal is signal.SIGHUP
    finally:
        signal.signal(signal.SIGHUP, before)


def test_nohup_ignores_closed_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with handle_signals((signal.SIGHUP, signal.SIGUSR1), lambda *_: None):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


SMALL = [
    "task.train_size=16",
    "task.eval_size=4",
    "rollout.buffer_size=8",
    "num_iterations=2",
    "evaluation.every=0",
    "evaluation.greedy=false",
    "actor.hidden_size=32",
    "actor.num_layers=1",
    "actor.num_heads=2",
    "actor.warm_start_steps=1",
    "actor.warmup_iterations=0",
    "tracker.tensorboard=false",
    "tracker.console=plain",
    "launch.threads=1",
]


@pytest.mark.slow
def test_run_continues_and_plan_exits_without_reader(tmp_path: Path) -> None:
    def piped_command(*arguments: str) -> tuple[int, str]:
        """Run `ippo-train ... | head -1`."""
        call = f"sys.argv = ['ippo-train', *{[*SMALL, f'output_dir={tmp_path}', *arguments]!r}]"
        return piped(f"import sys; {call}\nfrom ippo_cli.cli.train import main\nmain()")

    code, result = piped_command()
    assert code == 0
    assert "the output has no reader any more; training continues" in result
    (state,) = tmp_path.glob("default/*/run.json")
    assert json.loads(state.read_text())["state"] == "done"
    code, result = piped_command("mode=plan")
    assert code in (0, 141)
    assert "Traceback" not in result


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_closed_streams(tmp_path: Path, closed: tuple[int, ...]) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from ippo_cli.runs.output import flush_output, open_closed_streams, detect_closed_output\n"
        "open_closed_streams(); detect_closed_output()\n"
        "file = open(sys.argv[1], 'w'); print('lost'); print('lost', file=sys.stderr); flush_output()\n"
        "file.write('kept'); file.close()\n"
    )
    close = " ".join(f"{number}>&-" if number else "<&-" for number in closed)
    command = ["bash", "-c", f'"$0" -c "$1" "$2" {close}', sys.executable, program, str(tmp_path / "file")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert (tmp_path / "file").read_text() == "kept"
