"""Starting ranks on this machine, passing signals on to them, and ending together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from ippo_cli.config.errors import HUNG, IppoError, ResumeError
from ippo_cli.engine.launchers import LISTENING_SOCKET, STARTED_BY, cores_per_rank, node_rank
from ippo_cli.runs.folder import mark_run_failed, read_run_state
from ippo_cli.runs.handlers import InterruptCounter, handle_signals

FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)
PREEMPTED, INTERRUPTED = 75, 130
GRACE_S = 20.0  # how long other ranks may take to notice that one is gone
INTERRUPT_GRACE_S = 5.0  # how long ranks may take to leave after a second Ctrl-C
POLL_S = 0.1
LIKELY_REASONS: dict[int, str] = {
    signal.SIGKILL: "the system does this when memory runs out, and so does a scheduler at a limit; dmesg or the "
    "scheduler's log says which, and mode=plan what a rank needs",
    signal.SIGBUS: "a full /dev/shm or disk does this",
    signal.SIGABRT: "a library gave up; its own words stand above",
}


class RankFailure(IppoError):
    """A rank ended with an error; its exit code is the run's."""

    def __init__(self, rank: int, code: int, *, is_preempted: bool = False) -> None:
        if is_preempted:
            code = INTERRUPTED if -code == signal.SIGINT else PREEMPTED
            message = f"asked to leave before rank {rank} had begun"
        elif code < 0:
            message = f"rank {rank} {signal_description(code)}"
        else:
            message = f"rank {rank} was the first to end, with exit code {code}; the reason stands above"
        super().__init__(message)
        self.asked, self.is_killed = is_preempted, code < 0
        self.exit_code = code if code > 0 else 1


def signal_description(code: int) -> str:
    """What a negative return code says: `was killed by SIGKILL (...)`."""
    number = -code
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    reason = LIKELY_REASONS.get(number)
    return f"was killed by {name}" + (f" ({reason})" if reason else "")


def run_ranks(folder: Path, processes: int, *, resumed: bool) -> None:
    """Train in `processes` child processes. Raises `RankFailure` with the exit code of the first rank that failed."""
    command = ["ippo_cli.cli.rank", str(folder), *(["--resumed"] if resumed else [])]
    # Rank 0 is given this very socket: a port that is only known to be free may be another run's by then.
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = int(listening.getsockname()[1])
        environments = [_rank_environment(rank, processes, processes, port) for rank in range(processes)]
        failure = _run_rank_processes(environments, command, listening if processes > 1 else None)
    if failure is not None:
        with suppress(ResumeError):  # it may have ended before it had a state
            if failure.is_killed or (read_run_state(folder) == "running" and not failure.asked):
                mark_run_failed(folder, str(failure))  # rank 0 could not, or saw no more than that somebody was gone
        raise failure


def run_node_ranks(arguments: Sequence[str], processes: int, nodes: int) -> None:
    """Train in this machine's ranks of a run on several, where the same line was typed on each: every rank composes it
    by itself, as one that somebody else started. Raises `RankFailure` likewise."""
    node = node_rank(os.environ, nodes)
    environments = [
        _rank_environment(node * processes + local, nodes * processes, processes) | {"LOCAL_RANK": str(local)}
        for local in range(processes)
    ]
    failure = _run_rank_processes(environments, ["ippo_cli.cli.node", *arguments])
    if failure is not None:
        raise failure


def _run_rank_processes(
    environments: Sequence[dict[str, str]], command: Sequence[str], listening: socket.socket | None = None
) -> RankFailure | None:
    """Run a module once for each environment; the failure that came first. The first one meets the others where a
    socket is `listening`, if one is given."""
    ranks = _RankProcesses(int(environments[0]["RANK"]))
    with handle_signals(FORWARDED, ranks.forward):
        try:
            for environment in environments:
                given: tuple[int, ...] = ()
                if listening is not None and not ranks.children:
                    given = (listening.fileno(),)
                    environment = environment | {LISTENING_SOCKET: str(listening.fileno())}
                # A process group of its own: Ctrl-C reaches the ranks once, through `forward`.
                program = [sys.executable, "-m", *command]
                ranks.add(subprocess.Popen(program, env=environment, process_group=0, pass_fds=given))
            if listening is not None:
                listening.close()  # it ends with rank 0
            return ranks.wait()
        finally:
            ranks.kill()


def _rank_environment(rank: int, world_size: int, local_world_size: int, port: int | None = None) -> dict[str, str]:
    """The variables of a rank, of which `here` are on this machine; with a port all of them are."""
    meeting = {} if port is None else {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return (
        os.environ
        | meeting
        | {
            STARTED_BY: str(os.getpid()),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(local_world_size),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(cores_per_rank(os.environ, local_world_size))),
        }
    )


class _RankProcesses:
    """The child processes of a run: signals are passed on to them, and they end together."""

    def __init__(self, first: int = 0) -> None:
        self._first = first  # rank of this machine
        self.children: list[subprocess.Popen[bytes]] = []
        self._forwarded_signals: set[int] = set()
        self._interrupts = InterruptCounter()
        self._deadline = float("inf")

    def add(self, child: subprocess.Popen[bytes]) -> None:
        """Take in a rank that was just started, and tell it what came meanwhile."""
        self.children.append(child)
        for number in list(self._forwarded_signals):
            child.send_signal(number)

    def forward(self, number: int, _: FrameType | None) -> None:
        self._forwarded_signals.add(number)
        if number == signal.SIGINT:
            self._interrupts.note()
        if self._interrupts.insisted:  # no rank saves then, and one may wait for another that has left
            self._deadline = min(self._deadline, time.monotonic() + INTERRUPT_GRACE_S)
        for child in self.children:
            if child.poll() is None:
                child.send_signal(number)

    def wait(self) -> RankFailure | None:
        """Wait for all; after a failure the others get a grace period. Returns the failure that came first."""
        ended, failure = False, None
        while not ended and failure is None:
            time.sleep(POLL_S)
            ended = self._all_ended()  # asked first: a rank that fails after it is met by the next turn
            failure = self._first_failure()
            if failure is None and not ended and time.monotonic() > self._deadline:
                failure = RankFailure(0, INTERRUPTED)  # no rank could hear the second Ctrl-C
        if failure is not None and failure.is_killed:
            print(f"ippo: {failure}; the other ranks leave", file=sys.stderr, flush=True)
        if failure is not None and (failure.asked or failure.exit_code not in (PREEMPTED, INTERRUPTED)):
            # Ranks that saved together need none; those that hang together wait for each other before they leave.
            self._deadline = time.monotonic() + (INTERRUPT_GRACE_S if failure.exit_code == HUNG else GRACE_S)
        while not self._all_ended() and time.monotonic() < self._deadline:
            time.sleep(POLL_S)
        self.kill()
        return failure

    def kill(self) -> None:
        """End those that are still there, at once."""
        for child in self.children:
            if child.poll() is None:
                child.kill()
                child.wait()  # it may be writing

    def _all_ended(self) -> bool:
        return all(child.poll() is not None for child in self.children)

    def _first_failure(self) -> RankFailure | None:
        """Of the ranks that have failed one that was killed, since the others only follow, else the lowest."""
        codes = {rank: child.poll() for rank, child in enumerate(self.children, self._first)}
        failed = [(code > 0, rank, code) for rank, code in codes.items() if code]
        if not failed:
            return None
        _, rank, code = min(failed)
        # What is passed on kills a rank that has not begun.
        return RankFailure(rank, code, is_preempted=-code in self._forwarded_signals)
