"""Judging programs: correct programs pass, and wrong programs cannot forge a pass."""

from __future__ import annotations

import ast
import gzip
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from programs_of_others import FORGERIES, RIGHT

from ippo_cli.processes.pool import ProcessPool
from ippo_cli.rewards.code.judge import judge
from ippo_cli.rewards.code.program import extract_code

HUMANEVAL = Path(__file__).resolve().parents[4] / "shared" / "data" / "humaneval" / "HumanEval.jsonl.gz"
# Numbers with many digits do not occur by chance in addresses or nonces, which a forgery searches.
TEST = "def check(candidate):\n    assert candidate(21212121212121) == 42424242424242\n    assert candidate(1) == 2\n"
PROMPT = "def double(x):\n    '''Twice x.'''\n"


def run_test(text: str, test: str = TEST, prompt: str = PROMPT, kind: str = "unsafe_local") -> dict[str, Any]:
    return judge([text], ["double"], prompt, test, kind, 5.0)


def test_correct_program_passes_in_every_form(kind: str) -> None:
    for text in (
        RIGHT,
        "    return 2 * x",
        f"So:\n```python\n{RIGHT}```\nThat is it.",
        f"```\nx = 1\n```\n```py\n{RIGHT}",
    ):
        assert run_test(text, kind=kind)["passed"] == 1.0
    for test in ("assert double(3) == 6", "x = 3\nassert double(x) == 6, 'message'"):
        assert run_test(RIGHT, test)["passed"] == 1.0


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_program_fails(name: str, kind: str) -> None:
    found = run_test(FORGERIES[name], kind=kind)
    assert found["passed"] == 0.0
    assert found["share"] == 0.0


@pytest.mark.parametrize(
    ("text", "parses", "defines", "share"),
    [
        ("def double(x): return 42424242424242", 1.0, 1.0, 0.5),
        ("def double(x): return x / 0", 1.0, 1.0, 0.0),
        ("I do not know.", 0.0, 0.0, 0.0),
        ("", 0.0, 0.0, 0.0),
        ("    return", 1.0, 1.0, 0.0),
        ("x" * 2**17, 0.0, 0.0, 0.0),
        ("(" * 5000, 0.0, 0.0, 0.0),
        ("def other(x): return 2 * x", 0.0, 0.0, 0.0),
    ],
)
def test_metrics_of_wrong_programs(text: str, parses: float, defines: float, share: float) -> None:
    found = run_test(text, prompt="" if "other" not in text else "import math\n")
    if text.startswith("    return"):
        found = run_test(text)
    expected = (1.0, 0.0) if "other" in text else (parses, defines)
    assert (found["parses"], found["defines"], found["share"], found["passed"]) == (*expected, share, 0.0)


def test_assertion_counts() -> None:
    loop = "def check(candidate):\n    for n in range(4):\n        assert candidate(n) == 2 * n\n"
    assert run_test("def double(x): return x if x == 3 else 2 * x", loop)["share"] == 0.75
    early = (
        "def check(candidate):\n    assert candidate(1) == 2\n    y = candidate(0)\n    assert y == 0\n    assert y < 1"
    )
    assert run_test("def double(x): return 2 / x * x * x", early)["share"] == pytest.approx(1 / 3)
    looks_away = (
        "def check(candidate):\n    assert candidate(1) == 2\n    try: candidate(5)\n    except Exception: pass\n"
    )
    ends = "import os\ndef double(x): return 2 if x == 1 else os._exit(0)"
    assert run_test(ends, looks_away)["passed"] == 0.0
    assert run_test(RIGHT, "def check(candidate):\n    assert True\n    assert candidate(1) == 2\n")["share"] == 1.0
    with pytest.raises(ValueError, match="the tests contain no assertions"):
        run_test(RIGHT, "def check(candidate):\n    assert True\n")


ROOT = "def double(x):\n    if x < 0: raise ValueError('negative')\n    return 2 * x"
EXPECTED_ERRORS = [
    "try:\n        candidate(-1)\n        assert False, 'no error'\n    except ValueError:\n        pass",
    "try:\n        assert candidate(-1) == 0\n    except ValueError:\n        pass",
    "try:\n        candidate(-1)\n    except ValueError:\n        pass\n    else:\n        assert False",
]


@pytest.mark.parametrize("expected", EXPECTED_ERRORS)
def test_expected_error(expected: str) -> None:
    for test, share in (
        (f"def check(candidate):\n    {expected}\n", 0.0),
        (f"def check(candidate):\n    {expected}\n    assert candidate(1) == 2\n", 0.5),
    ):
        right, silent = run_test(ROOT, test), run_test("def double(x): return 2 * x", test)
        assert (right["share"], right["passed"]) == (1.0, 1.0)
        assert (silent["share"], silent["passed"]) == (share, 0.0)
        other = run_test(ROOT.replace("ValueError", "KeyError"), test)
        assert other["passed"] == 0.0


def test_unexpected_error_is_failure() -> None:
    test = "def check(candidate):\n    try: assert candidate(1) == 2\n    except Exception: assert False\n"
    assert run_test(RIGHT, test)["passed"] == 1.0
    assert run_test("def double(x): return 1 / 0", test)["passed"] == 0.0
    never = "def check(candidate):\n    if candidate(1) != 2:\n        assert False\n    assert candidate(2) == 4\n"
    assert run_test(RIGHT, never)["share"] == 1.0
    assert run_test("def double(x): return 4", never)["passed"] == 0.0


CAUGHT_ERRORS = [
    "try:\n        {}\n    except Exception:\n        return False\n    return True",
    "try:\n        {}\n    except Exception as error:\n        print(error)",
    "try:\n        {}\n    except:\n        pass",
    "try:\n        {}\n    except ValueError:\n        return False",
    "try:\n        {}\n    except (ValueError, Exception):\n        pass",
    "try:\n        {}\n        candidate('no number')\n        assert False\n    except ValueError:\n        pass",
    "try:\n        {}\n    except ValueError:\n        pass",
]


@pytest.mark.parametrize("caught", CAUGHT_ERRORS)
def test_raising_program_fails_if_tests_catch_errors(caught: str) -> None:
    asserted = "assert candidate(1) == 2\n        assert candidate(2) == 4"
    test = "def check(candidate):\n    " + caught.format(asserted)
    right = "def double(x):\n    if isinstance(x, str): raise ValueError('negative')\n    return 2 * x"
    found = run_test(right, test)
    assert (found["share"], found["passed"]) == (1.0, 1.0)
    raises = run_test("def double(x): raise ValueError", test)
    assert raises["passed"] == 0.0
    assert raises["share"] <= 1 / 3
    assert run_test("def double(x): return 3", test)["passed"] == 0.0


def test_stages_of_two_texts(kind: str) -> None:
    def pair(helper: str, caller: str) -> dict[str, Any]:
        return judge([helper, caller], ["aux", "double"], PROMPT, TEST, kind, 5.0)

    helper = "def aux(x): return x + x"
    assert pair(helper, "def double(x): return aux(x)") == {
        "parses": 1.0, "defines": 1.0, "calls": 1.0, "share": 1.0, "passed": 1.0, "why": ""
    }  # fmt: skip
    assert pair(helper, "def double(x):\n    aux(x)\n    return 2 * x")["calls"] == 0.0  # its result is discarded
    assert pair("def axu(x): pass", "def double(x): return aux(x)")["defines"] == 0.5
    assert pair("no helper", "def double(x): return 2 * x")["parses"] == 0.5
    assert pair("no helper", "def double(x): return 2 * x")["share"] == 0.0


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    if not HUMANEVAL.is_file():
        pytest.skip("the HumanEval file is not beside the checkout")
    with gzip.open(HUMANEVAL, "rt") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def passed(bwrap: str) -> Iterator[Callable[[list[str], list[dict[str, str]]], list[float]]]:
    """A function that returns whether programs pass the tests of rows, in the sandbox, two at a time."""
    judges = ProcessPool("ippo_cli.rewards.code.judge:judge", "reward.kind", 2, 60.0)

    def verdicts(texts: list[str], of: list[dict[str, str]]) -> list[float]:
        calls = [
            (([text], [row["entry_point"]], row["prompt"], row["test"], bwrap, 10.0), {})
            for text, row in zip(texts, of, strict=True)
        ]
        return [one["passed"] for one in judges.call(calls)]

    yield verdicts
    judges.close()


@pytest.mark.slow
def test_humaneval_solutions_pass_and_wrong_returns_fail(
    rows: list[dict[str, str]], passed: Callable[..., list[float]]
) -> None:
    assert len(rows) == 164
    assert passed([row["canonical_solution"] for row in rows], rows) == [1.0] * 164
    assert passed([mutated(row) for row in rows], rows) == [0.0] * 164


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "count"), [("comparison", 119), ("number", 128), ("operator", 100)])
def test_mutated_humaneval_solutions_fail(
    kind: str, count: int, rows: list[dict[str, str]], passed: Callable[..., list[float]]
) -> None:
    """Not all mutations fail: some do not change the result, and some are not covered by a row's tests."""
    changed = [(text, row) for row in rows if (text := Mistake(kind).made_in(row)) is not None]
    texts, of = [text for text, _ in changed], [row for _, row in changed]
    found = len(changed) - sum(passed(texts, of))
    print(f"{kind}: {found:.0f} of {len(changed)}")
    assert len(changed) == count
    assert found / count > 0.85


class Mistake(ast.NodeTransformer):
    """Mutates the first comparison, adds 1 to the first integer, or replaces the first operator."""

    COMPARISONS: ClassVar = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq}
    COMPARISONS |= {ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is}
    OPERATORS: ClassVar = {ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.Mod: ast.Add}
    OPERATORS |= {ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult}

    def __init__(self, kind: str) -> None:
        self.kind, self.done = kind, False

    def made_in(self, row: dict[str, str]) -> str | None:
        """The mutated program; None if it has no place for this mutation."""
        tree = ast.parse(row["prompt"] + row["canonical_solution"])
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name == row["entry_point"]:
                self.generic_visit(node)
        return ast.unparse(ast.fix_missing_locations(tree)) if self.done else None

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if self.kind == "comparison" and not self.done:
            self.done = True
            node.ops[0] = self.COMPARISONS[type(node.ops[0])]()
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if self.kind == "number" and not self.done and type(node.value) is int:
            self.done = True
            return ast.Constant(node.value + 1)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if self.kind == "operator" and not self.done and type(node.op) in self.OPERATORS:
            self.done = True
            node.op = self.OPERATORS[type(node.op)]()
        return self.generic_visit(node)


def mutated(row: dict[str, str]) -> str:
    """A wrong reference solution: every returned value is wrapped in a list."""
    tree = ast.parse(row["prompt"] + row["canonical_solution"])
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and node.value is not None:
            node.value = ast.List([node.value], ast.Load())
    return ast.unparse(ast.fix_missing_locations(tree))


GOOD = "def add(a, b):\n    return a + b\n"
FORMS = {
    "example after it": f"```python\n{GOOD}```\nExample:\n```python\nprint(add(1, 2))\n```",
    "output after it": f"```python\n{GOOD}```\nOutput:\n```\n3\n```",
    "shell after it": f"```python\n{GOOD}```\n```bash\npython add.py\n```",
    "carriage returns": f"```python\n{GOOD}```".replace("\n", "\r\n"),
    "indented fence": "1. This:\n\n   ```python\n   def add(a, b):\n       return a + b\n   ```\n",
    "indented by a tab": "\t```python\n\tdef add(a, b):\n\t    return a + b\n\t```",
    "tildes": f"~~~python\n{GOOD}~~~",
    "four backticks": f"````python\n{GOOD}````",
    "attributes": f'```python title="add.py"\n{GOOD}```',
    "fence in a docstring": '```python\ndef add(a, b):\n    """\n    ```\n    add(1, 2)\n    ```\n    """\n'
    "    return a + b\n```",
    "helper in an earlier block": "```python\ndef plus(a, b):\n    return a + b\n```\n"
    "```python\ndef add(a, b):\n    return plus(a, b)\n```",
    "corrected draft": f"```python\ndef add(a, b):\n    return a - b\n```\nNo:\n```python\n{GOOD}```",
    "closed at the end of a line": f"```python\n{GOOD.rstrip()}```",
    "no fence": f"Here it is:\n\n{GOOD}\nThis adds them.",
    "body": "    return a + b\n\nThis adds them.",
    "body without indentation": "return a + b\n",
    "body in a fence": "```python\n    return a + b\n```",
    "lambda": "```python\nadd = lambda a, b: a + b\n```",
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_a_correct_program(form: str) -> None:
    prompt = 'def add(a, b):\n    """Sum of two."""\n'
    test = "def check(candidate):\n    assert candidate(2, 3) == 5\n"
    assert judge([FORMS[form]], ["add"], prompt, test, "unsafe_local", 5.0)["passed"] == 1.0


def test_wrong_last_version_fails() -> None:
    wrong = f"```python\n{GOOD}```\nBetter:\n```python\ndef add(a, b):\n    return a - b\n```"
    test = "def check(candidate):\n    assert candidate(2, 3) == 5\n"
    assert judge([wrong], ["add"], "", test, "unsafe_local", 5.0)["passed"] == 0.0


def test_long_run_of_blanks_is_linear() -> None:
    start = time.process_time()
    assert extract_code("```" + " " * 60_000 + "x", "f") == "```" + " " * 60_000 + "x"
    assert extract_code("```  python \nx = 1\n```", "f") == "x = 1\n"
    assert time.process_time() - start < 2.0


SUM = "n = int(input())\nprint(sum(map(int, input().split())) / n)\n"
SUM_OF_INPUT = "(lambda n: sum(map(int, input().split())) / n)(int(input()))"
SUMS = json.dumps({"inputs": ["2\n1 2\n", ["1", "5"]], "outputs": ["1.5\n", "5.0"]})


@pytest.mark.parametrize(
    ("text", "test", "share"),
    [
        (f"```python\n{SUM}```", SUMS, 1.0),
        ("import sys\nn, *xs = map(int, open(0).read().split())\nprint(sum(xs) / n)\nsys.exit()", SUMS, 1.0),
        ("if __name__ == '__main__':\n    " + SUM.replace("\n", "\n    "), SUMS, 1.0),
        ("import sys\nsys.stdout.buffer.write(b'1.5')", SUMS, 0.5),
        (f"{SUM}exit()", SUMS, 1.0),
        (f"{SUM}if n > 1:\n    quit(0)\nprint()", SUMS, 1.0),
        (f"import asyncio\nasync def main():\n    print({SUM_OF_INPUT})\nasyncio.run(main())", SUMS, 1.0),
        (f"import threading\nthreading.Thread(target=lambda: print({SUM_OF_INPUT})).start()", SUMS, 1.0),
        (f"import atexit\natexit.register(lambda: print({SUM_OF_INPUT}))", SUMS, 1.0),
        (f"import os\nprint({SUM_OF_INPUT}, flush=True)\nos._exit(0)", SUMS, 1.0),
        (f"import os\nprint({SUM_OF_INPUT}, flush=True)\nos._exit(1)", SUMS, 0.0),
        (f"import os\nprint({SUM_OF_INPUT})\nos._exit(0)", SUMS, 0.0),
        ("n, *xs = map(int, open('/dev/stdin').read().split())\nprint(sum(xs) / n)", SUMS, 1.0),
        (
            "from pathlib import Path\nn, *xs = map(int, Path('/dev/stdin').read_text().split())\nprint(sum(xs) / n)",
            SUMS,
            1.0,
        ),
        ("print('\u0665.\u0660')", SUMS, 0.0),
        ("print('5_0e-1')", SUMS, 0.0),
        ("print('50e-1')", SUMS, 0.5),
        ("print('1.5')\nraise SystemExit(1)", SUMS, 0.0),
        ("import os\nos._exit(0)", SUMS, 0.0),
        ("print(", SUMS, 0.0),
        (SUM, json.dumps([{"input": "1\n3", "output": "3.0", "testtype": "stdin"}]), 1.0),
        ("def f(a, b): return (a, b)", json.dumps({"fn_name": "f", "inputs": [[1, 2]], "outputs": [[1, 2]]}), 1.0),
        ("def f(a): return a", json.dumps({"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], 3]}), 0.5),
    ],
)
def test_inputs_and_outputs(text: str, test: str, share: float, kind: str) -> None:
    found = judge([text], ["double"], "Write a program.", test, kind, 5.0)
    assert (found["share"], found["passed"]) == (share, float(share == 1.0))


@pytest.mark.parametrize(
    "test", ['{"inputs": ["1"]}', '{"inputs": [], "outputs": []}', '{"inputs": [1], "outputs": ["1"]}', "[]"]
)
def test_invalid_inputs_and_outputs(test: str) -> None:
    with pytest.raises(ValueError, match="tests"):
        judge(["print(1)"], ["double"], "", test, "unsafe_local", 5.0)


@pytest.mark.parametrize(
    "text",
    [
        "class Solution:\n    def double(self, x: Optional[int]) -> int:\n        return 2 * x\n",
        "import asyncio\nasync def double(x):\n    await asyncio.sleep(0.001)\n"
        "    return sum(await asyncio.gather(same(x), same(x)))\n"
        "async def same(x):\n    return x\n",
        "class Solution:\n    async def double(self, x):\n        return 2 * x\n",
        "import asyncio\nasync def twice(x):\n    return 2 * x\n\ndef double(x):\n    return asyncio.run(twice(x))\n",
        "import asyncio\nasync def double(x):\n    return await asyncio.to_thread(lambda: twice(x))\n\n"
        "def twice(x):\n    return 2 * x\n",
        "def double(x):\n    return 2 * x\n\nprint(double(int(input())))\nwrong = input()\n",
    ],
)
def test_methods_and_coroutines(text: str, kind: str) -> None:
    assert run_test(text, kind=kind)["passed"] == 1.0
    assert (
        run_test(text.replace("return 2 * x", "return x").replace("return x\n", "return 3 * x\n"), kind=kind)["passed"]
        == 0.0
    )


def test_returned_ranges_and_fractions(kind: str) -> None:
    program = "from fractions import Fraction\ndef double(x): return Fraction(2 * x) if x > 9 else range(2 * x)"
    test = (
        "def check(candidate):\n    assert candidate(10**20) * 3 == 6 * 10**20\n    assert list(candidate(1)) == [0, 1]"
    )
    assert run_test(program, test, kind=kind)["passed"] == 1.0
    # A list of a longer range could fill the memory of the process that runs the tests.
    assert run_test("def double(x): return range(10**12)", "assert list(double(1))[0] == 0", kind=kind)["passed"] == 0.0
    assert run_test("def double(x): return Fraction(1, 0)", test, kind=kind)["passed"] == 0.0


def test_integer_of_many_digits(kind: str) -> None:
    calls = ("assert candidate(10**5000) == 2 * 10**5000", "assert candidate(-(2**70)) == -(2**71)")
    test = "def check(candidate):\n    " + "\n    ".join(calls)
    assert run_test(RIGHT, test, kind=kind)["passed"] == 1.0
    assert run_test("def double(x): return 2 * x + 1", test, kind=kind)["passed"] == 0.0
