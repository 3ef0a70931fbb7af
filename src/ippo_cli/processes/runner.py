"""The process inside a sandbox: executes a program and calls one of its functions per request.

Requests and replies are one line of JSON with plain data. The caller does not trust replies: it compares the returned
values itself, outside the sandbox. This is the only file of ours in the sandbox; it imports only the standard library.
"""

from __future__ import annotations

import _thread
import json
import os
import resource
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes a third of the startup time
    from typing import Any

MAX_REPLY_BYTES = 2**16
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
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if isinstance(value, list):
        return [encode_value(part) for part in value]
    if isinstance(value, dict):
        return {"dict": [[encode_value(key), encode_value(part)] for key, part in value.items()]}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, bytes):
        return {"bytes": list(value)}
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [encode_value(part) for part in value]}
    raise TypeError(f"a value of type {type(value).__name__} is not plain data")


def decode_value(value: Any) -> Any:
    """Inverse of `encode_value`; returns only built-in types."""
    if isinstance(value, list):
        return [decode_value(part) for part in value]
    if not isinstance(value, dict):
        return value
    [(kind, parts)] = value.items()
    if kind == "dict":
        return {decode_value(key): decode_value(part) for key, part in parts}
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
    for line in requests:
        request = loads(line)
        result: dict[str, Any] = {}
        try:
            if "program" in request:
                exec(compile(request["program"], "program.py", "exec"), program)
                function = program[request["entry_point"]]
            else:
                args, kwargs = decode_value(request["call"])
                result["value"] = encode_value(function(*args, **kwargs))
        except BaseException as error:
            result = {"error": type(error).__name__, "message": str(error)[:200]}
        send_reply({"nonce": request["nonce"], **result})


if __name__ == "__main__":
    main()
