"""Servers that do not start, hang, or are killed, and trainers that are killed: an error, and nothing left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from tiny_engine import build_engine_model, build_model, build_request, build_settings, build_tokenizer

from ippo_cli.config.errors import EngineError
from ippo_cli.rollout.vllm.server import ServerEngine
from ippo_cli.rollout.vllm.server_process import ServerProcess, command_line

CPU = torch.device("cpu")
TOKENIZER = build_tokenizer()
MODEL = build_model(TOKENIZER)
REAL = [pytest.mark.needs_vllm, pytest.mark.slow]
# Runs as the trainer: starts an engine, prints its supervisor, and waits with requests in flight.
TRAINER = """
import sys, torch
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tiny_engine import *
from ippo_cli.rollout.vllm.server import ServerEngine
if __name__ == "__main__":
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    log_path = Path(sys.argv[2]) / "vllm.log"
    engine = ServerEngine(
        build_engine_model(model, tokenizer), build_settings(), torch.device("cpu"), log_path=log_path
    )
    engine.start()
    engine.load_weights([(name, parameter.detach()) for name, parameter in model.named_parameters()], 1)
    print(engine.process.pid, engine._memory.folder, engine._folder, flush=True)
    while True:
        engine.submit(build_request(0, [5, 6], stop_ids=(), max_new_tokens=100))
        while not engine.step():
            pass
"""


def find_segments(number: int) -> set[Path]:
    """The segments of shared memory that a process has mapped; others may be left of servers that were killed."""
    lines = Path(f"/proc/{number}/maps").read_text().splitlines()
    return {Path(line.split()[-1]) for line in lines if "/dev/shm/psm_" in line}


def list_processes(session: int) -> list[int]:
    """Processes of a session that are not zombies."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[3]) == session:
            found.append(int(folder.name))
    return found


def wait_until_ended(session: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while list_processes(session) and time.monotonic() < end:
        time.sleep(0.1)
    assert list_processes(session) == []


def step_until_failure(engine: ServerEngine) -> NoReturn:
    while True:
        engine.step()


def build_engine(tmp_path: Path, **settings: object) -> ServerEngine:
    model = build_engine_model(MODEL, TOKENIZER)
    return ServerEngine(model, build_settings(**settings), CPU, log_path=tmp_path / "logs" / "vllm.log")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[ServerEngine]:
    made = build_engine(tmp_path, request_timeout_s=4.0)
    made.start()
    yield made
    made.close()


def test_arguments_of_the_engine_become_those_of_the_command_line() -> None:
    arguments = {"dtype": "float32", "enforce_eager": True, "async_scheduling": False, "x_y": None, "a": {"b": 1}}
    assert command_line(arguments) == [
        "--dtype",
        "float32",
        "--enforce-eager",
        "--no-async-scheduling",
        "--a",
        '{"b": 1}',
    ]


def test_first_errors_of_the_log_and_a_remedy_are_in_the_message(tmp_path: Path) -> None:
    process = ServerProcess(tmp_path, {}, name="low", log_path=tmp_path / "log", start_timeout_s=1.0)
    lines = [
        "(Worker pid=7) ERROR 11-25 21:29:14 [multiproc_executor.py:1063] RuntimeError: CUDA out of memory. Tried to",
        "nanobind: leaked 4 instances!",
        *(f"(EngineCore pid=6) INFO 11-25 21:29:14 [core.py:1] line {number}" for number in range(30)),
        "(APIServer pid=5) ERROR 11-25 21:29:15 [async_llm.py:1] EngineDeadError: EngineCore encountered an issue.",
    ]
    (tmp_path / "log").write_text("\n".join(lines))
    message = str(process.failure("the server did not start"))
    assert message.startswith("rollout=vllm: low: the server did not start; set rollout.vllm.kv_cache_gib or")
    assert "\n  RuntimeError: CUDA out of memory. Tried to\n  EngineDeadError: " in message
    assert "line 29" in message
    assert "line 5\n" not in message
    assert "nanobind" not in message


@pytest.mark.slow
def test_wrong_argument_is_an_error_with_the_servers_reason(tmp_path: Path) -> None:
    engine = build_engine(tmp_path, engine_args={"no_such_argument": 3})
    folders = set(Path("/dev/shm").glob("ippo-*"))
    with pytest.raises(EngineError, match=r"engine_args|pip install 'ippo-cli\[vllm\]'") as error:
        engine.start()
    assert error.value.exit_code == 16
    assert engine.process is None
    assert set(Path("/dev/shm").glob("ippo-*")) <= folders


class TestRealServers:
    pytestmark = REAL

    def test_start_timeout_is_an_error(self, tmp_path: Path) -> None:
        engine = build_engine(tmp_path, start_timeout_s=4.0)
        start = time.monotonic()
        with pytest.raises(EngineError, match=r"within rollout.vllm.start_timeout_s=4 seconds"):
            engine.start()
        assert time.monotonic() - start < 20

    def test_too_much_memory_is_an_error_that_names_the_key(self, tmp_path: Path) -> None:
        with pytest.raises(EngineError, match=r"rollout.vllm.kv_cache_gib"):
            build_engine(tmp_path, kv_cache_gib=1e5).start()

    def test_killed_engine_is_an_error(self, engine: ServerEngine) -> None:
        assert engine.process is not None
        session = engine.process.pid
        workers = [number for number in list_processes(session) if "EngineCore" in read_name(number)]
        assert workers
        engine.submit(build_request(0, [5, 6], stop_ids=(), max_new_tokens=100))
        os.kill(workers[0], signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(EngineError, match="low: the server"):
            step_until_failure(engine)
        assert time.monotonic() - start < 30
        wait_until_ended(session, 5)

    def test_hanging_server_is_an_error(self, engine: ServerEngine) -> None:
        assert engine.process is not None
        session = engine.process.pid
        segments = {segment for number in list_processes(session) for segment in find_segments(number)}
        assert segments, "vLLM's executor of several processes has some"
        engine.submit(build_request(0, [5, 6], stop_ids=(), max_new_tokens=100))
        for number in list_processes(session):
            if number != session:
                os.kill(number, signal.SIGSTOP)
        start = time.monotonic()
        with pytest.raises(EngineError, match="the server has not answered for"):
            step_until_failure(engine)
        assert time.monotonic() - start < 30
        wait_until_ended(session, 5)
        assert not any(segment.exists() for segment in segments)

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
    def test_killed_trainer_leaves_nothing(self, tmp_path: Path, number: signal.Signals) -> None:
        command = [sys.executable, "-c", TRAINER, str(Path(__file__).parent), str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
            assert trainer.stdout is not None
            session, *folders = trainer.stdout.readline().split()
            assert len(list_processes(int(session))) >= 3
            trainer.send_signal(number)
        wait_until_ended(int(session), 15)
        assert [folder for folder in folders if Path(folder).exists()] == []


def read_name(process: int) -> str:
    try:
        return Path(f"/proc/{process}/cmdline").read_text()
    except OSError:
        return ""
