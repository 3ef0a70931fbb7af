"""Extraction of correct programs from the formats in which models write them."""

from __future__ import annotations

import pytest

from ippo_cli.rewards.code.judge import judge

FENCE = "```"
RIGHT = f"{FENCE}python\ndef double(x):\n    return 2 * x\n{FENCE}\n"
TEST = "assert double(3) == 6\nassert double(1) == 2\n"


def indent(text: str, prefix: str) -> str:
    return "".join(prefix + line for line in text.splitlines(keepends=True))


def fenced(code: str) -> str:
    return f"{FENCE}python\n{code}{FENCE}\n"


FORMS = {
    "bullet": "- " + indent(RIGHT, "  ").lstrip(),
    "numbered": "1. " + indent(RIGHT, "   ").lstrip(),
    "quotation": "> So:\n>\n" + indent(RIGHT, "> "),
    "quotation without spaces": indent(RIGHT, ">"),
    "block of markdown": f"````markdown\n# So\n{RIGHT}````\n",
    "html": '<pre><code class="python">def double(x):\n    return 2 * x if x &gt; 0 else 2 * x\n</code></pre>',
    "thoughts": f"<think>maybe {FENCE}python def</think>\n{RIGHT}",
    "constant in an earlier block": fenced("K: int = 1 + 1\n") + fenced("def double(x):\n    return K * x\n"),
    "future import": fenced("from __future__ import annotations\n\ndef double(x: List) -> Foo:\n    return 2 * x\n"),
    "future import in two blocks": fenced("from __future__ import annotations\nK = 2\n")
    + fenced("from __future__ import annotations\ndef double(x: A):\n    return K * x\n"),
    "dataclass": fenced(
        "from dataclasses import dataclass\n\n@dataclass\nclass D:\n    x: int\n\ndef double(x): return D(2 * x).x\n"
    ),
    "annotated name": fenced("double: object = lambda x: 2 * x\n"),
    "under if": fenced("if True:\n    def double(x):\n        return 2 * x\n"),
    "under try": fenced("try:\n    import math\nexcept ImportError:\n    pass\nelse:\n    double = lambda x: 2 * x\n"),
    "continued by >": fenced("def double(x):\n    return 2 * x\n\ny = (1\n> 2)\n"),
    "class": fenced("class double:\n    def __new__(cls, x):\n        return 2 * x\n"),
    "instance": fenced("class Twice:\n    def __call__(self, x):\n        return 2 * x\n\ndouble = Twice()\n"),
    "partial function": fenced("import functools, operator\ndouble = functools.partial(operator.mul, 2)\n"),
    "result of a call": fenced("def make():\n    return lambda x: 2 * x\n\ndouble = make()\n"),
    "import with a use in a later block": fenced("def double(x):\n    return 2 * x\n")
    + fenced("from solution import double\nassert double(1) == 2\n")
    + fenced("double = list(map(double, [1, 2]))\n"),
    "byte order mark": "\ufeffdef double(x):\n    return 2 * x\n",
    "inline code": "It is `x * 2`, so `def double(x): return 2 * x`.",
    "interactive session": ">>> def double(x):\n...     return 2 * x\n...\n>>> double(2)\n4\n",
    "interactive session in a block": fenced(">>> def double(x):\n...     return 2 * x\n>>> double(2)\n4\n"),
    "think as a string": fenced("A = '</think>'\n\ndef double(x):\n    return 2 * x\n"),
}


def test_import_from_the_standard_library() -> None:
    test = "assert neg(3) == -3\nassert neg(1) == -1\n"
    assert judge([fenced("from operator import neg\n")], ["neg"], "", test, "unsafe_local", 5.0)["passed"] == 1.0
    found = judge([fenced("from solution import neg\n")], ["neg"], "", test, "unsafe_local", 5.0)
    assert found["why"] == "a function is missing"


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("prompt", ["", "def double(x: int) -> int:\n    '''Twice x.'''\n"])
def test_right_program(name: str, prompt: str) -> None:
    found = judge([FORMS[name]], ["double"], prompt, TEST, "unsafe_local", 5.0)
    assert found["passed"] == 1.0, found
