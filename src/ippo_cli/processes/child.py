"""Child process that calls one function once per request: `python -P child.py REQUESTS ANSWERS PARENT`.

Answers use a separate pipe, so that text printed by the function is never read as an answer. The first request
contains `sys.path`; before it, the process imports only the standard library.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import struct
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, BinaryIO

LENGTH_HEADER = struct.Struct(">Q")


def main(requests: BinaryIO, answers: BinaryIO) -> None:
    """Serve requests until the pipe closes: `(args, kwargs)` in, `(True, result)` or `(False, error)` out."""
    setting = read_message(requests)
    assert setting is not None
    sys.path[:] = setting["path"]
    from ippo_cli.config.errors import IppoError
    from ippo_cli.user_code.load import load_function

    try:
        function = load_function(setting["function"], setting["key"])
        if setting["factory_arguments"] is not None:
            function = function(*setting["factory_arguments"])
    except IppoError as error:
        write_message(answers, (False, str(error)))
        return
    write_message(answers, (True, None))
    while (request := read_message(requests)) is not None:
        write_message(answers, run_call(function, *request))


def run_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[bool, Any]:
    seed_from_args(args)
    try:
        return True, to_builtins(function(*args, **kwargs))
    except (Exception, SystemExit) as error:
        from ippo_cli.user_code.errors import format_user_error

        return False, format_user_error(error)


def seed_from_args(args: tuple[Any, ...]) -> None:
    """Seed the global random generators from the arguments: equal arguments give equal random numbers."""
    seed_generators(int.from_bytes(hashlib.sha256(repr(args).encode(errors="replace")).digest()[:4], "big"))


def seed_generators(seed: int) -> None:
    """Seed the global random generators, those of imported packages included."""
    random.seed(seed)
    for name, seeded in (("numpy", lambda numpy: numpy.random.seed(seed)), ("torch", lambda t: t.manual_seed(seed))):
        if name in sys.modules:
            seeded(sys.modules[name])


def to_builtins(value: Any) -> Any:
    """Convert arrays, tensors, dataclasses and number types to built-in numbers, strings, lists and dicts."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_builtins(part) for key, part in value.items()}
    if hasattr(value, "tolist"):  # an array, a tensor, or one of their scalars
        return to_builtins(value.tolist())
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [to_builtins(part) for part in value]
    if hasattr(value, "__float__"):
        return float(value)
    if is_dataclass(value):
        named = {leaf.name: getattr(value, leaf.name) for leaf in fields(value)}
        return {name: to_builtins(part) for name, part in named.items() if not _is_default(part)}
    raise TypeError(f"it returned {value!r:.60}, which is not a number or a collection of numbers")


def _is_default(part: Any) -> bool:
    return part is None or part is False or (isinstance(part, Mapping) and not part)


def read_message(pipe: BinaryIO) -> Any:
    """The next message; None at the end of the pipe."""
    head = pipe.read(LENGTH_HEADER.size)
    return pickle.loads(pipe.read(LENGTH_HEADER.unpack(head)[0])) if len(head) == LENGTH_HEADER.size else None


def write_message(pipe: BinaryIO, message: Any) -> None:
    pipe.write(pack_message(message))
    pipe.flush()


def pack_message(message: Any) -> bytes:
    body = pickle.dumps(message)
    return LENGTH_HEADER.pack(len(body)) + body


if __name__ == "__main__":
    from ippo_cli.processes.descendants import fork_guarded

    requests, answers = int(sys.argv[1]), int(sys.argv[2])
    fork_guarded(int(sys.argv[3]), [requests, answers])
    try:
        main(os.fdopen(requests, "rb"), os.fdopen(answers, "wb"))
    finally:
        os.killpg(0, 9)  # threads of the function as well
