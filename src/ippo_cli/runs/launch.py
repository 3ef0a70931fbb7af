"""Starts ranks on this machine, forwards signals to them, and ends all of them if one fails."""

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
from typing import IO

from ippo_cli.config.errors import HUNG, IppoError, ResumeError
from ippo_cli.engine.launchers import LISTENING_SOCKET, STARTED_BY, cores_per_rank, node_rank
from ippo_cli.runs.folder import mark_run_failed, read_run_state
from ippo_cli.runs.handlers import InterruptCounter, handle_signals
from ippo_cli.runs.output import print_text

FORWARDED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT, signal.SIGHUP)
PREEMPTED, INTERRUPTED = 75, 130
GRACE_S = 20.0  # how long other ranks may take to exit after one failed
INTERRUPT_GRACE_S = 5.0  # how long ranks may take to exit after a second Ctrl-C
POLL_S = 0.1
LIKELY_REASONS: dict[int, str] = {
    signal.SIGKILL: "likely out of memory, or a scheduler limit; see dmesg or the scheduler's log, and mode=plan for "
    "the memory that a rank needs",
    signal.SIGBUS: "likely a full /dev/shm or disk",
    signal.SIGABRT: "a library aborted; see its message above",
}


class RankFailure(IppoError):
    """A rank exited with an error; its exit code becomes the run's."""

    def __init__(self, rank: int, code: int, *, is_preempted: bool = False) -> None:
        if is_preempted:
            code = INTERRUPTED if -code == signal.SIGINT else PREEMPTED
            message = f"stop requested before rank {rank} had started"
        elif code < 0:
            message = f"rank {rank} {signal_description(code)}"
        else:
            message = f"rank {rank} failed first, with exit code {code}; see its message above"
        super().__init__(message)
        self.is_preempted, self.is_killed = is_preempted, code < 0
        self.exit_code = code if code > 0 else 1


def signal_description(code: int) -> str:
    """The text for a negative return code: `was killed by SIGKILL (...)`."""
    number = -code
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    reason = LIKELY_REASONS.get(number)
    return f"was killed by {name}" + (f" ({reason})" if reason else "")


def run_ranks(folder: Path, processes: int, *, resumed: bool, output: IO[bytes] | None = None) -> None:
    """Train in `processes` child processes. Raises `RankFailure` with the exit code of the first rank that failed.

    `output`: a file for what they print; None shows it.
    """
    command = ["ippo_cli.cli.rank", str(folder), *(["--resumed"] if resumed else [])]
    # Rank 0 inherits this open socket: another run could take a port that was only known to be free.
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = int(listening.getsockname()[1])
        environments = [_rank_environment(rank, processes, processes, port) for rank in range(processes)]
        failure = run_rank_processes(environments, command, listening if processes > 1 else None, output)
    if failure is not None:
        with suppress(ResumeError):  # the run may have ended before it wrote run.json
            if failure.is_killed or (read_run_state(folder) == "running" and not failure.is_preempted):
                mark_run_failed(folder, str(failure))  # rank 0 could not, or only knew that a rank was lost
        raise failure


def run_node_ranks(arguments: Sequence[str], processes: int, nodes: int) -> None:
    """Train in this machine's ranks of a multi-node run; the same command runs on every node.

    Each rank composes the configuration itself, as with an external launcher. Raises `RankFailure`.
    """
    node = node_rank(os.environ, nodes)
    environments = [
        _rank_environment(node * processes + local, nodes * processes, processes) | {"LOCAL_RANK": str(local)}
        for local in range(processes)
    ]
    failure = run_rank_processes(environments, ["ippo_cli.cli.node", *arguments])
    if failure is not None:
        raise failure


def run_rank_processes(
    environments: Sequence[dict[str, str]],
    command: Sequence[str],
    listening: socket.socket | None = None,
    output: IO[bytes] | None = None,
) -> RankFailure | None:
    """Run a module once per environment; returns the first failure. The first process inherits `listening`."""
    ranks = _RankProcesses(int(environments[0]["RANK"]))
    with handle_signals(FORWARDED, ranks.forward_signal):
        try:
            for environment in environments:
                given: tuple[int, ...] = ()
                if listening is not None and not ranks.children:
                    given = (listening.fileno(),)
                    environment = environment | {LISTENING_SOCKET: str(listening.fileno())}
                # Separate process groups, so that Ctrl-C reaches the ranks once, through `forward`.
                program = [sys.executable, "-m", *command]
                child = subprocess.Popen(
                    program, env=environment, process_group=0, pass_fds=given, stdout=output, stderr=output
                )
                ranks.add(child)
            if listening is not None:
                listening.close()  # rank 0 holds it now
            return ranks.wait()
        finally:
            ranks.kill()


def _rank_environment(rank: int, world_size: int, local_world_size: int, port: int | None = None) -> dict[str, str]:
    """A rank's environment variables; with `port`, all ranks run on this machine."""
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
    """The child processes of a run: forwards signals to them and ends them together."""

    def __init__(self, first: int = 0) -> None:
        self._first_rank = first  # lowest rank of this machine
        self.children: list[subprocess.Popen[bytes]] = []
        self._forwarded_signals: set[int] = set()
        self._interrupts = InterruptCounter()
        self._deadline = float("inf")

    def add(self, child: subprocess.Popen[bytes]) -> None:
        """Add a started rank, and forward the signals received so far to it."""
        self.children.append(child)
        for number in list(self._forwarded_signals):
            child.send_signal(number)

    def forward_signal(self, number: int, _: FrameType | None) -> None:
        self._forwarded_signals.add(number)
        if number == signal.SIGINT:
            self._interrupts.record()
        if self._interrupts.is_repeated:  # ranks exit without saving; one may wait for a rank that has exited
            self._deadline = min(self._deadline, time.monotonic() + INTERRUPT_GRACE_S)
        for child in self.children:
            if child.poll() is None:
                child.send_signal(number)

    def wait(self) -> RankFailure | None:
        """Wait for all ranks; after a failure the others get a grace period. Returns the first failure."""
        ended, failure = False, None
        while not ended and failure is None:
            time.sleep(POLL_S)
            ended = self._all_ended()  # checked first, so that a failure after this line is found in the next loop
            failure = self._first_failure()
            if failure is None and not ended and time.monotonic() > self._deadline:
                failure = RankFailure(0, INTERRUPTED)  # no rank reacted to the second Ctrl-C
        if failure is not None and failure.is_killed:
            print_text(f"ippo: {failure}; the other ranks exit", to_stderr=True)
        if failure is not None and (failure.is_preempted or failure.exit_code not in (PREEMPTED, INTERRUPTED)):
            # No deadline for ranks that save together; a hang is detected by all ranks, so a short one suffices.
            self._deadline = time.monotonic() + (INTERRUPT_GRACE_S if failure.exit_code == HUNG else GRACE_S)
        while not self._all_ended() and time.monotonic() < self._deadline:
            time.sleep(POLL_S)
        self.kill()
        return failure

    def kill(self) -> None:
        """Kill the ranks that still run."""
        for child in self.children:
            if child.poll() is None:
                child.kill()
                child.wait()  # until it has released its files

    def _all_ended(self) -> bool:
        return all(child.poll() is not None for child in self.children)

    def _first_failure(self) -> RankFailure | None:
        """The failed rank to report: a killed one, because other failures follow from it, else the lowest."""
        codes = {rank: child.poll() for rank, child in enumerate(self.children, self._first_rank)}
        failed = [(code > 0, rank, code) for rank, code in codes.items() if code]
        if not failed:
            return None
        _, rank, code = min(failed)
        # A forwarded signal kills a rank that has not installed its handlers yet.
        return RankFailure(rank, code, is_preempted=-code in self._forwarded_signals)
