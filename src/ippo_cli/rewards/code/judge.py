"""Runs a program's tests. The tests run in this process, the program in a sandbox, so it cannot modify the tests.

The tests call the function under test through a proxy: each call is a message to the sandbox, and results contain only
built-in types. This code runs in a process that can be killed (`processes.py`). Does not import torch.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from ippo_cli.processes.sandbox import Sandbox
from ippo_cli.rewards.code.io_tests import IoTests, read_io_tests, run_io_tests
from ippo_cli.rewards.code.program import (
    assemble_program,
    defines_function,
    extract_code,
    join_programs,
    parse_code,
    uses_call_result,
)

CHECK = "check"
BROAD_ERRORS = {"Exception", "BaseException", "AssertionError"}


def judge(
    texts: list[str], names: list[str], prompt: str, test: str, sandbox: str, timeout_s: float
) -> dict[str, float | str]:
    """Metrics of a program written in one text, or in a helper's text and the caller's text; numbers are from 0 to 1.

    `names` are the functions that the texts must define; the last one is under test. Tests of inputs and outputs name
    their function themselves, or run the program as a script. Raises `ValueError` or `SyntaxError` if the tests cannot
    run.
    """
    io_tests = read_io_tests(test)
    if io_tests is None:
        read_tests(test)  # invalid tests fail the row for any program
    elif io_tests.function is None:
        return _judge_script(io_tests, texts, prompt, sandbox, timeout_s)
    else:
        names = [*names[:-1], io_tests.function]
    *helper_names, name = names
    helpers = [extract_code(text, own) for text, own in zip(texts[:-1], helper_names, strict=True)]
    trees = [parse_code(helper) for helper in helpers]
    program = assemble_program(prompt, texts[-1], name)
    parses = [tree is not None for tree in trees] + [program is not None]
    is_defined = [defines_function(tree, own) for tree, own in zip(trees, helper_names, strict=True)]
    is_defined.append(defines_function(parse_code(program or ""), name))
    result: dict[str, float | str] = {
        "parses": _fraction_true(parses),
        "defines": _fraction_true(is_defined),
        "share": 0.0,
        "passed": 0.0,
    }
    if len(texts) > 1:
        result["calls"] = float(uses_call_result(parse_code(program or ""), name, names[0]))
    if not all(parses) or not all(is_defined):
        return {**result, "why": "it does not parse" if not all(parses) else "a function is missing"}
    assert program is not None
    program = join_programs([*helpers, program])
    if io_tests is not None:
        tally = _run_io_tests(io_tests, program, sandbox, timeout_s)
    else:
        tally = run_tests(program, name, prompt, test, sandbox, timeout_s)
    return {**result, "share": tally.pass_rate, "passed": float(tally.all_passed), "why": tally.first_error}


def _judge_script(
    tests: IoTests, texts: list[str], prompt: str, sandbox: str, timeout_s: float
) -> dict[str, float | str]:
    """Metrics of a program, the parts of all texts together, that reads standard input."""
    parts = [extract_code(text, "") for text in texts]
    parses = [parse_code(part) is not None for part in parts]
    result: dict[str, float | str] = {"parses": _fraction_true(parses), "defines": _fraction_true(parses)}
    if len(texts) > 1:
        result["calls"] = float(all(parses))
    if not all(parses):
        return {**result, "share": 0.0, "passed": 0.0, "why": "it does not parse"}
    before = [prompt] if prompt.strip() and parse_code(prompt) is not None else []
    tally = _run_io_tests(tests, join_programs([*before, *parts]), sandbox, timeout_s)
    return {**result, "share": tally.pass_rate, "passed": float(tally.all_passed), "why": tally.first_error}


def _run_io_tests(tests: IoTests, program: str, sandbox: str, timeout_s: float) -> AssertionCounts:
    tally = AssertionCounts(expected=len(tests.cases))

    def record(error: str) -> None:
        if error:
            tally.record_failure(AssertionError(error))
        else:
            tally.record_pass()

    run_io_tests(tests, program, sandbox, timeout_s, record)
    return tally


@dataclass
class AssertionCounts:
    """Counts of passed and failed assertions."""

    expected: int  # lower bound: assertions in the source
    passed: int = 0
    failed: int = 0
    first_error: str = ""

    @property
    def all_passed(self) -> bool:
        return self.passed > 0 and not self.failed

    @property
    def pass_rate(self) -> float:
        return self.passed / max(self.expected, self.passed + self.failed, 1)

    def record_pass(self) -> None:
        self.passed += 1

    def record_failure(self, error: BaseException) -> None:
        self.failed += 1
        self.first_error = self.first_error or f"{type(error).__name__}: {error}"[:200]


def run_tests(program: str, entry_point: str, prompt: str, test: str, kind: str, timeout_s: float) -> AssertionCounts:
    """Run the tests. Raises errors of the tests or the sandbox; errors of the program count as failed assertions."""
    tests, expected = read_tests(test)
    tally = AssertionCounts(expected=expected)
    sandbox = Sandbox(kind, timeout_s)
    try:
        sandbox.load(program, entry_point)
    except Exception as error:
        tally.record_failure(error)
        return tally
    else:
        _execute_tests(tests, sandbox, entry_point, prompt, tally)
    finally:
        sandbox.close()
    if not tally.passed + tally.failed:
        raise ValueError("the tests contain no assertions")
    return tally


def _execute_tests(tests: ast.Module, sandbox: Sandbox, entry_point: str, prompt: str, tally: AssertionCounts) -> None:
    namespace = _execute_prompt(prompt)
    namespace |= {entry_point: sandbox.call, "__passed": tally.record_pass, "__failed": tally.record_failure}
    random.seed(0)
    try:
        exec(compile(tests, "tests", "exec"), namespace)
        if callable(namespace.get(CHECK)):
            namespace[CHECK](sandbox.call)
    except Exception as error:  # outside an assertion: the remaining tests do not run
        tally.record_failure(error)
    if sandbox.failure is not None and not tally.failed:  # the tests caught the error
        tally.record_failure(sandbox.failure)


def _execute_prompt(prompt: str) -> dict[str, Any]:
    """The definitions of the prompt, which tests may use; they come from the dataset, not from a model."""
    namespace: dict[str, Any] = {"__name__": "tests"}
    if (tree := parse_code(prompt)) is not None:
        exec(compile(tree, "prompt", "exec"), namespace)
    return namespace


def read_tests(test: str) -> tuple[ast.Module, int]:
    """The tests, rewritten so that a failed assertion is counted and does not end them; and the number of assertions.

    Raises `ValueError` or `SyntaxError` for tests that no program can pass.
    """
    tree = ast.parse(test)
    for module in _imported_packages(tree):
        if find_spec(module) is None:
            raise ValueError(f"the tests import {module}, which is not installed")
    counting = _AssertionCounter()
    tree = ast.fix_missing_locations(counting.visit(tree))
    if not counting.count:
        raise ValueError("the tests contain no assertions")
    return tree, counting.count


def check_prompt_code(prompt: str, entry_point: str, kind: str, timeout_s: float) -> None:
    """Run a prompt that is code, and raise its error: every program that starts with the prompt would raise it."""
    if parse_code(prompt) is None:
        return
    sandbox = Sandbox(kind, timeout_s)
    try:
        sandbox.load(f"{prompt}\n\ndef {entry_point}(*_): ...\n", entry_point)
    finally:
        sandbox.close()


def _imported_packages(tree: ast.Module) -> Iterator[str]:
    """Packages imported at module level."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


class _AssertionCounter(ast.NodeTransformer):
    """Counts assertions; an exception in an assertion is its failure, also if the tests would catch it.

    In two forms the tests expect an error, and the handler that catches it counts as passed: `assert False` after a
    statement that must raise, and a try body of one assertion with a handler that ignores a specific exception type.
    """

    def __init__(self) -> None:
        self.count = 0
        self._may_raise = False  # whether the tests expect an error of this assertion

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        if isinstance(node.test, ast.Constant) and node.test.value:  # `assert True` is not counted
            return ast.Pass()
        never = isinstance(node.test, ast.Constant)  # `assert False`
        self.count += not never
        held = "pass" if never else "__passed()"
        caught = "AssertionError" if self._may_raise else "Exception"
        counted = ast.parse(f"try:\n pass\n {held}\nexcept {caught} as __error:\n __failed(__error)").body[0]
        assert isinstance(counted, ast.Try)
        counted.body[0] = node
        return counted

    def visit_Try(self, node: ast.Try) -> ast.AST:
        never = any(map(_is_assert_false, (*node.body, *node.orelse)))
        alone = not never and len(node.body) == 1 and isinstance(node.body[0], ast.Assert)
        expected = [
            handler
            for handler in node.handlers
            if (never and not _contains_statement(handler.body, ast.Assert, ast.Raise))
            or (alone and _ignores_specific_error(handler))
        ]
        outside, self._may_raise = self._may_raise, alone and bool(expected)
        node.body = [self.visit(child) for child in node.body]
        self._may_raise = outside
        for field in ("handlers", "orelse", "finalbody"):
            setattr(node, field, [self.visit(child) for child in getattr(node, field)])
        if expected:
            self.count += never
            for handler in expected:
                handler.body = [*ast.parse("__passed()").body, *handler.body]
        return node


def _ignores_specific_error(handler: ast.ExceptHandler) -> bool:
    """Whether the handler ignores a specific exception type; broad types do not count, since any bug raises one."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    certain = all(isinstance(kind, ast.Name) and kind.id not in BROAD_ERRORS for kind in kinds)
    return certain and all(isinstance(statement, ast.Pass) for statement in handler.body)


def _contains_statement(body: Sequence[ast.stmt], *kinds: type[ast.stmt]) -> bool:
    return any(isinstance(node, kinds) for statement in body for node in ast.walk(statement))


def _is_assert_false(statement: ast.stmt) -> bool:
    """Whether the statement is `assert False`, which marks code that must not be reached."""
    return isinstance(statement, ast.Assert) and isinstance(statement.test, ast.Constant) and not statement.test.value


def _fraction_true(flags: list[bool]) -> float:
    return sum(flags) / len(flags)
