"""Signal handlers in this process, and their absence in forked children."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable

import pytest

from ippo_cli.runs.handlers import handle_signals
from ippo_cli.runs.signals import HANDLED_SIGNALS, WATCH_INTERVAL_S, PreemptionHandler


def status_of(child: int) -> int:
    """The wait status of a child that exits within seconds; otherwise the child is killed."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child did not end")


def forked(work: Callable[[], object]) -> int:
    """Fork a child that calls this and exits with 7."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(7)
    return child


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_signal_ends_forked_child(number: signal.Signals) -> None:
    with PreemptionHandler() as preemption:
        child = forked(lambda: time.sleep(60))
        os.kill(child, number)
        status = status_of(child)
        assert os.WIFSIGNALED(status)
        assert os.WTERMSIG(status) == number
        assert preemption.received_signal is None


def test_immediately_signalled_child_ends() -> None:
    with PreemptionHandler():
        for _ in range(30):  # the signal arrives before, during and after the child restores the handlers
            child = forked(lambda: time.sleep(60))
            os.kill(child, signal.SIGTERM)
            assert os.WIFSIGNALED(status_of(child))


def test_child_forked_by_another_thread_ends() -> None:
    statuses: list[int] = []

    def work() -> None:
        child = forked(lambda: time.sleep(60))
        os.kill(child, signal.SIGTERM)
        statuses.append(status_of(child))

    with PreemptionHandler():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert os.WTERMSIG(statuses[0]) == signal.SIGTERM


def test_child_gets_original_handlers_after_two_replacements() -> None:
    read, write = os.pipe()
    before = signal.signal(signal.SIGUSR1, lambda *_: os.write(write, b"before"))
    try:
        with handle_signals([signal.SIGUSR1], lambda *_: None), PreemptionHandler():
            child = forked(lambda: os.kill(os.getpid(), signal.SIGUSR1))
            assert os.WEXITSTATUS(status_of(child)) == 7
            assert os.read(read, 100) == b"before"
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_child_may_exit_the_handler_block() -> None:
    with handle_signals(HANDLED_SIGNALS, lambda *_: None):
        child = os.fork()
    if child == 0:
        os._exit(3 if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL else 4)
    assert os.WEXITSTATUS(status_of(child)) == 3


def test_parent_keeps_handlers_and_signal_mask() -> None:
    before = {number: signal.getsignal(number) for number in HANDLED_SIGNALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with PreemptionHandler() as preemption:
        status_of(forked(lambda: None))
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
        os.kill(os.getpid(), signal.SIGUSR1)
        assert preemption.received_signal is signal.SIGUSR1
    assert {number: signal.getsignal(number) for number in HANDLED_SIGNALS} == before


def test_waiter_is_notified_once_of_a_signal() -> None:
    result: list[str] = []
    with PreemptionHandler() as preemption:
        preemption.on_preemption = result.append
        time.sleep(2 * WATCH_INTERVAL_S)
        assert result == []
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(2 * WATCH_INTERVAL_S)
    assert result == ["SIGTERM"]


def test_pool_can_be_terminated() -> None:
    with PreemptionHandler():
        pool = multiprocessing.get_context("fork").Pool(2)
        assert pool.map(abs, [-1, -2]) == [1, 2]
        ending = threading.Thread(target=pool.terminate, daemon=True)
        ending.start()
        ending.join(timeout=20)
        ended = not ending.is_alive()
        for worker in multiprocessing.active_children():
            worker.kill()
        assert ended


def test_prepared_command_has_default_handlers() -> None:
    with PreemptionHandler():
        process = subprocess.Popen(["sleep", "60"], preexec_fn=lambda: None)
        process.terminate()
        assert process.wait(timeout=20) == -signal.SIGTERM
