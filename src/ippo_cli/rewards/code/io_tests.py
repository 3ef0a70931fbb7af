"""Tests that are pairs of inputs and outputs, as in APPS, TACO and LiveCodeBench: of a script, or of a function."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ippo_cli.processes.sandbox import Sandbox

FLOAT_TOLERANCE = 1e-6  # relative and absolute, for words that are decimals
_DECIMAL = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
)  # `float` also reads 5_0 and other digits
LAYOUT = 'a JSON object {"inputs": [...], "outputs": [...]}, with "fn_name" if the inputs are lists of arguments'


class IoTests(NamedTuple):
    """Inputs and the outputs that they must have; without `function` the inputs are texts for standard input."""

    cases: list[tuple[Any, Any]]
    function: str | None


def read_io_tests(test: str) -> IoTests | None:
    """The tests of a text that is JSON; None for other texts. Raises `ValueError` for another layout."""
    if not test.lstrip().startswith(("{", "[")):
        return None
    try:
        data: Any = json.loads(test)
    except ValueError:
        return None
    if isinstance(data, list):  # LiveCodeBench: a list of cases
        cases = [case if isinstance(case, dict) else {} for case in data]
        data = {key: [case.get(key[:-1]) for case in cases] for key in ("inputs", "outputs")}
    if not isinstance(data, dict) or not all(isinstance(data.get(key), list) for key in ("inputs", "outputs")):
        raise ValueError(f"the tests are not {LAYOUT}")
    cases = list(zip(data["inputs"], data["outputs"], strict=False))
    if not cases or len(data["inputs"]) != len(data["outputs"]):
        raise ValueError(f"the tests have {len(data['inputs'])} inputs and {len(data['outputs'])} outputs")
    function = data.get("fn_name") or None
    if function is None:
        cases = [(_join_lines(stdin_or_args), _join_lines(wanted)) for stdin_or_args, wanted in cases]
    kind = str if function is None else list
    if not all(isinstance(stdin_or_args, kind) for stdin_or_args, _ in cases):
        raise ValueError(f"an input of the tests is not a {'text' if function is None else 'list of arguments'}")
    return IoTests(cases, function)


def _join_lines(value: Any) -> Any:
    return "\n".join(map(str, value)) if isinstance(value, list) else value


def run_io_tests(tests: IoTests, program: str, kind: str, timeout_s: float, record: Callable[[str], None]) -> None:
    """Run a program on every input, and call `record` with the error of each case, empty for a right output."""
    sandbox = Sandbox(kind, timeout_s)
    try:
        load_error = ""
        if tests.function is not None:
            try:
                sandbox.load(program, tests.function)
            except Exception as error:
                load_error = f"{type(error).__name__}: {error}"
        for stdin_or_args, wanted in tests.cases:
            record(load_error or _run_case(sandbox, tests.function, program, stdin_or_args, wanted))
    finally:
        sandbox.close()


def _run_case(sandbox: Sandbox, function: str | None, program: str, stdin_or_args: Any, wanted: Any) -> str:
    try:
        if function is None:
            written = sandbox.run_script(program, stdin_or_args)
            is_right = outputs_match(written, str(wanted))
        else:
            written = sandbox.call(*stdin_or_args)
            is_right = _to_lists(written) == wanted or [_to_lists(written)] == wanted  # APPS puts results into a list
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if is_right else f"wrong output {written!r:.60}"


def _to_lists(value: Any) -> Any:
    """JSON has no tuples."""
    return [_to_lists(part) for part in value] if isinstance(value, list | tuple) else value


def outputs_match(written: str, wanted: str) -> bool:
    """Whether two outputs have the same words on the same lines; decimals are compared as numbers."""
    lines, wanted_lines = ([line.split() for line in text.strip().split("\n")] for text in (written, wanted))
    return len(lines) == len(wanted_lines) and all(
        len(line) == len(other) and all(map(_words_match, line, other))
        for line, other in zip(lines, wanted_lines, strict=True)
    )


def _words_match(word: str, wanted: str) -> bool:
    if word == wanted:
        return True
    if "." not in wanted or not _DECIMAL.fullmatch(word) or not _DECIMAL.fullmatch(wanted):
        return False
    return math.isclose(float(word), float(wanted), rel_tol=FLOAT_TOLERANCE, abs_tol=FLOAT_TOLERANCE)
