"""The process inside a sandbox: executes a program and calls one of its functions per request.

Requests and replies are one line of JSON with plain data. The caller does not trust replies: it compares the returned
values itself, outside the sandbox. This is the only file of ours in the sandbox; it imports only the standard library.
"""

from __future__ import annotations

import _thread
import atexit
import builtins
import io
import json
import os
import resource
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes a third of the startup time
    from typing import Any

MAX_REPLY_BYTES = 2**16
MAX_RANGE = 2**16  # length of a range in a reply: the tests may make a list of it
MAX_INTEGER = 2**63  # larger ones are sent in hexadecimal: Python refuses decimals of more than 4300 digits
LIMITS = {
    resource.RLIMIT_CPU: 5,
    resource.RLIMIT_AS: 2**30,
    resource.RLIMIT_FSIZE: 2**24,
    resource.RLIMIT_NPROC: 32,
    resource.RLIMIT_NOFILE: 64,
    resource.RLIMIT_CORE: 0,
}


def encode_value(value: Any) -> Any:
    """Encode built-in data for JSON, with tags for types that JSON lacks; `TypeError` for other types."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value) if -MAX_INTEGER < value < MAX_INTEGER else {"int": hex(value)}
    if isinstance(value, float):
        return float(value)
    if isinstance(value, list):
        return [encode_value(part) for part in value]
    if isinstance(value, dict):
        return {"dict": [[encode_value(key), encode_value(part)] for key, part in value.items()]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes):
        return {"bytes": list(value)}
    if isinstance(value, range):
        return {"range": [hex(part) for part in (value.start, value.stop, value.step)]}
    if type(value).__name__ == "Fraction":
        return {"fraction": [hex(value.numerator), hex(value.denominator)]}
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [encode_value(part) for part in value]}
    raise TypeError(f"a value of type {type(value).__name__} is not plain data")


def decode_value(value: Any) -> Any:
    """Inverse of `encode_value`; returns only built-in types and fractions."""
    if isinstance(value, list):
        return [decode_value(part) for part in value]
    if not isinstance(value, dict):
        return value
    [(kind, parts)] = value.items()
    if kind == "dict":
        return {decode_value(key): decode_value(part) for key, part in parts}
    if kind == "int":
        return int(parts, 16)
    if kind == "range":
        numbers = range(*(int(part, 16) for part in parts))
        if not numbers[MAX_RANGE:]:
            return numbers
        raise ValueError(f"a range is longer than {MAX_RANGE}")
    if kind == "fraction":
        from fractions import Fraction

        return Fraction(*(int(part, 16) for part in parts))
    if kind == "complex":
        return complex(*parts)
    if kind == "bytes":
        return bytes(parts)
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[kind](map(decode_value, parts))


def exit_with_parent(parent: int) -> None:
    """Kill this process group within a second after the parent process has exited."""
    getppid, sleep, killpg = os.getppid, time.sleep, os.killpg

    def watch() -> None:
        while getppid() == parent:
            sleep(1.0)
        killpg(0, 9)

    _thread.start_new_thread(watch, ())


class PipeEnd:
    """An end of a pipe with the methods of a socket that event loops call."""

    def __init__(self, number: int) -> None:
        self._number = number
        os.set_blocking(number, False)

    def fileno(self) -> int:
        return self._number

    def recv(self, size: int) -> bytes:
        return os.read(self._number, size)

    def send(self, data: bytes) -> int:
        return os.write(self._number, data)

    def close(self) -> None:
        os.close(self._number)


def use_pipes_in_event_loops() -> None:
    """Let the event loops of asyncio wake up by a pipe; they open a pair of sockets, which the sandbox forbids."""
    from asyncio.selector_events import BaseSelectorEventLoop

    def make_pipe(loop: Any) -> None:
        loop._ssock, loop._csock = map(PipeEnd, os.pipe())
        loop._internal_fds += 1
        loop._add_reader(loop._ssock.fileno(), loop._read_from_self)

    BaseSelectorEventLoop._make_self_pipe = make_pipe  # pyright: ignore[reportAttributeAccessIssue]


def run_coroutine(coroutine: Any) -> Any:
    """The result of a coroutine."""
    use_pipes_in_event_loops()
    import asyncio

    return asyncio.run(coroutine)


def execute(program: str, namespace: dict[str, Any]) -> None:
    """Execute a program with the names that Python's `site`, which the sandbox does not import, adds for scripts."""
    builtins.exit = builtins.quit = sys.exit
    if "asyncio" in program:  # its import takes longer than a short program
        use_pipes_in_event_loops()
    exec(compile(program, "program.py", "exec"), namespace)


def load_program(program: str, entry_point: str, namespace: dict[str, Any]) -> Any:
    """Execute the definitions of a program; returns its function.

    There is no standard input: a program that reads it after the function's definition has loaded.
    """
    try:
        execute(program, namespace)
    except EOFError:
        if entry_point not in namespace:
            raise
    return namespace[entry_point]


class ProcessExit(SystemExit):
    """`os._exit`: ends a script without the output that it has not flushed."""


def exit_process(code: int) -> None:
    """`os._exit` of a script."""
    raise ProcessExit(code)


def open_file(file: Any, *args: Any, **kwargs: Any) -> Any:
    """`open` of a script, also for the names of standard input and output, which need `/proc`."""
    number = {"/dev/stdin": 0, "/dev/stdout": 1}.get(str(file))
    return _OPEN(file if number is None else os.dup(number), *args, **kwargs)


_OPEN, _EXIT = open, os._exit


def set_script_functions(opening: Any, exiting: Any) -> None:
    """Set the functions that scripts call to open files and to end the process."""
    builtins.open = io.open = opening
    os._exit = exiting


def run_to_exit(program: str, namespace: dict[str, Any]) -> None:
    """Run a script, its threads and its functions for the exit, and flush its output."""
    try:
        try:
            execute(program, namespace)
        finally:
            if "threading" in sys.modules:
                threading = sys.modules["threading"]
                for thread in threading.enumerate():
                    if not thread.daemon and thread is not threading.current_thread():
                        thread.join()
            atexit._run_exitfuncs()
    except ProcessExit as error:
        if error.code not in (None, 0):
            raise
        return
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    sys.stdout.flush()


def run_script(program: str, text: str, folder: str) -> str:
    """Run a program as a script that reads `text` from standard input; returns what it wrote to standard output."""
    numbers = [os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600) for _ in (0, 1)]
    streams = sys.stdin, sys.stdout
    try:
        data = text.encode()
        while data:
            data = data[os.write(numbers[0], data) :]
        os.lseek(numbers[0], 0, os.SEEK_SET)
        for number, file in enumerate(numbers):
            os.dup2(file, number)
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        module = sys.modules["__main__"] = type(sys)("__main__")
        set_script_functions(open_file, exit_process)
        run_to_exit(program, vars(module))
        os.lseek(numbers[1], 0, os.SEEK_SET)
        with open(numbers[1], closefd=False, errors="replace") as written:
            return written.read(MAX_REPLY_BYTES)
    finally:
        set_script_functions(_OPEN, _EXIT)
        sys.stdin, sys.stdout = streams
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1):  # the program may have closed them
            os.dup2(nothing, number)
        for number in (nothing, *numbers):
            if number > 1:
                os.close(number)


def error_name(kind: type[BaseException]) -> str:
    """The name of an error's type, or of the built-in type, other than `Exception`, that it is a subclass of."""
    for base in kind.__mro__:
        if base.__module__ == "builtins" and base not in (Exception, BaseException, object):
            return base.__name__
    return kind.__name__


def main() -> None:
    if sys.argv[1:]:  # not with bwrap, which has --die-with-parent
        exit_with_parent(int(sys.argv[1]))
    requests, answers = os.fdopen(os.dup(0), "rb"), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    for limit, most in LIMITS.items():
        hard = resource.getrlimit(limit)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (most, most))
    sys.stdin, sys.stdout, sys.stderr = (open(os.devnull, mode) for mode in "rww")  # noqa: SIM115
    dumps, loads, write = json.dumps, json.loads, os.write

    def send_reply(message: dict[str, Any]) -> None:
        data = dumps(message).encode() + b"\n"
        while data:
            data = data[write(answers, data) :]

    send_reply({"ready": True})
    module = sys.modules["program"] = type(sys)("program")  # decorators such as `dataclass` look up their module
    program: dict[str, Any] = vars(module)
    function: Any = None
    folder = os.getcwd()
    for line in requests:
        request = loads(line)
        result: dict[str, Any] = {}
        try:
            if "program" in request:
                function = load_program(request["program"], request["entry_point"], program)
            elif "script" in request:
                result["value"] = run_script(request["script"], request["stdin"], folder)
            else:
                args, kwargs = decode_value(request["call"])
                value = function(*args, **kwargs)
                result["value"] = encode_value(run_coroutine(value) if type(value).__name__ == "coroutine" else value)
        except BaseException as error:
            result = {"error": error_name(type(error)), "message": str(error)[:200]}
        send_reply({"nonce": request["nonce"], **result})


if __name__ == "__main__":
    main()
