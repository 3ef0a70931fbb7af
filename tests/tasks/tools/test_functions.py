"""Python functions as tools: their schemas, errors of the user's file, and calls outside of this process."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import ToolFormat, ToolsConfig
from ippo_cli.tasks.tools.formats import ParsedResponse, ToolCall
from ippo_cli.tasks.tools.load import load_agent_tools
from ippo_cli.tasks.tools.runner import ToolRunner

FILE = str(Path(__file__).parent / "my_tools.py")
LOOK = '''
import os

def look(path: str) -> bool:
    """Look.

    Args:
        path: A file.
    """
    return os.path.exists(path)
'''
CONFIG = ToolsConfig(template="", tools=FILE, tool_format=ToolFormat.json, tool_timeout_s=1.0)


@pytest.fixture(scope="module")
def runner() -> Iterator[ToolRunner]:
    tools = load_agent_tools("solo", CONFIG)
    assert tools is not None
    runner = ToolRunner(tools)
    yield runner
    runner.close()


def call(runner: ToolRunner, name: str, **arguments: object) -> tuple[str, bool]:
    [result] = runner.run(ParsedResponse("", (ToolCall(name, arguments),)), 9)
    assert result.name == name
    return result.text, result.has_failed


def test_a_file_offers_its_public_functions_with_schemas() -> None:
    tools = load_agent_tools("solo", CONFIG)
    assert tools is not None
    assert [tool.name for tool in tools.tools] == ["add", "fail", "hang", "end", "think", "write", "search"]
    function = tools.tools[0].schema["function"]
    assert function["description"] == "Add two numbers."
    assert function["parameters"]["properties"]["a"] == {"type": "integer", "description": "The first number."}
    assert function["parameters"]["required"] == ["a"]
    assert tools.tools[-1].schema["function"]["description"] == "Search."


def test_results_of_calls(runner: ToolRunner) -> None:
    assert call(runner, "add", a=2, b=3) == ("5", False)
    assert call(runner, "add", a=2) == ("3", False)
    assert call(runner, "search", query="é") == ("results of é", False)
    text, failed = call(runner, "write", count=10_000)
    assert text.endswith("... (10000 characters)")
    assert not failed
    assert json.loads(call(runner, "think")[0])["pid"] != os.getpid()


def test_failures_are_texts_for_the_model_and_the_next_call_works(runner: ToolRunner) -> None:
    assert call(runner, "fail", text="no") == ("Error: ValueError: no", True)
    assert call(runner, "add", b=3) == ("Error: TypeError: missing a required argument: 'a'", True)
    assert call(runner, "add", a=1, self=3) == ("Error: TypeError: got an unexpected keyword argument 'self'", True)
    assert call(runner, "_helper")[0].startswith("Error: there is no tool '_helper'; tools are add fail")
    assert call(runner, "hang") == ("Error: the call took longer than 1 s", True)
    assert call(runner, "end") == ("Error: the call ended its process (exit code 3)", True)
    assert call(runner, "add", a=2, b=3) == ("5", False)


def test_calls_above_the_limit_and_malformed_calls_are_answered(runner: ToolRunner) -> None:
    add = ToolCall("add", {"a": 1})
    results = runner.run(ParsedResponse("", (add, add, add), ("invalid JSON",)), 2)
    assert [result.text for result in results] == [
        "2",
        "2",
        "Error: no more than 4 calls are allowed; answer now",
        "Error: the call is malformed: invalid JSON",
    ]
    assert [result.has_failed for result in results] == [False, False, True, True]


def test_a_sandboxed_tool_has_no_network_and_no_files(tmp_path: Path, bwrap: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("known")
    file = tmp_path / "walled.py"
    file.write_text(LOOK)
    for sandbox, text in ((False, "true"), (True, "false")):
        tools = load_agent_tools("solo", replace(CONFIG, tools=str(file), tool_sandbox=sandbox, tool_timeout_s=20.0))
        assert tools is not None
        runner = ToolRunner(tools)
        assert call(runner, "look", path=str(secret)) == (text, False)
        assert call(runner, "look", path=0, self=1)[0].startswith("Error: TypeError")
        runner.close()
    for entry in ("paint", "choose"):
        with pytest.raises(ConfigError, match="and calls in the sandbox have plain named arguments; use JSON types"):
            load_agent_tools("solo", replace(CONFIG, tools=f"{UNUSUAL}:{entry}", tool_sandbox=True))
    file.write_text("import numpy\ndef look() -> bool:\n    'Look.'\n    return True\n")
    with pytest.raises(ConfigError, match=r"cannot be imported in the sandbox \(ModuleNotFoundError: .*numpy"):
        load_agent_tools("solo", replace(CONFIG, tools=str(file), tool_sandbox=True))


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], str]:
    """Writes a user's file and returns its path."""

    def write(text: str) -> str:
        (tmp_path / "mine.py").write_text(text)
        return str(tmp_path / "mine.py")

    return write


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1/0", r"mine\.py:1: ZeroDivisionError"),
        ("x = 1", "defines no public function"),
        ("TOOLS = []", r"TOOLS=\[\]"),
        ("TOOLS = [len]", "not a function with a name in that file"),
        ("\ndef f(a): 'x'", "no usable JSON schema, line 2 .*Argument a is missing a type hint"),
        ("def f(a: int): pass", "has no docstring"),
        ("def f(*words: str): 'D.\\n\\nArgs:\\n  words: W.'", r"f\(\*words: str\) takes any number of arguments"),
        ("def f(a: int, **more: int): 'D.\\n\\nArgs:\\n  a: A.\\n  more: M.'", "takes any number of arguments"),
        ("def f(): pass\nf.schema = {'name': 'g', 'parameters': {}}", "its name is 'g'"),
        ("def f(): pass\nf.schema = {'name': 'f'}", "it has no parameters"),
        (r"def f(): '\ud800'", "surrogates not allowed"),
        ("class A: pass\nTOOLS = [A]", "is a class, and .*; name a function, or an object with __call__"),
        (
            "from functools import cache\n@cache\nasync def f(): 'x'",
            "caches an async function, and its coroutine can be awaited only once; cache a function without async",
        ),
    ],
)
def test_errors_of_the_users_file(text: str, message: str, write: Callable[[str], str]) -> None:
    with pytest.raises(ConfigError, match=message):
        load_agent_tools("solo", replace(CONFIG, tools=write(text)))


def test_a_list_of_tools_and_single_functions(write: Callable[[str], str]) -> None:
    chosen = write("def f() -> int:\n    'F.'\n    return 1\ndef g() -> int:\n    'G.'\n    return 2\nTOOLS = [g]")
    for entries, names in ((chosen, ["g"]), ([f"{chosen}:f", f"{FILE}:add"], ["f", "add"])):
        tools = load_agent_tools("solo", replace(CONFIG, tools=entries))
        assert tools is not None
        assert [tool.name for tool in tools.tools] == names
    with pytest.raises(ConfigError, match="several tools with the name 'add'"):
        load_agent_tools("solo", replace(CONFIG, tools=[FILE, f"{FILE}:add"]))


UNUSUAL = str(Path(__file__).parent / "unusual_tools.py")


@pytest.fixture(scope="module")
def unusual() -> Iterator[ToolRunner]:
    tools = load_agent_tools("solo", replace(CONFIG, tools=UNUSUAL))
    assert tools is not None
    names = ["cached", "square", "two", "decorated", "wrapped", "search", "generate", "make_object", "read_later"]
    assert [tool.name for tool in tools.tools] == [*names, "paint", "choose", "make"]
    parameters = {tool.name: tool.schema["function"]["parameters"] for tool in tools.tools}
    assert list(parameters["square"]["properties"]) == ["base", "note"]
    assert parameters["two"]["required"] == ["exponent"]
    assert parameters["search"]["properties"]["q"] == {"type": "string", "description": "query"}
    runner = ToolRunner(tools)
    yield runner
    runner.close()


@pytest.mark.parametrize(
    ("name", "arguments", "text", "has_failed"),
    [
        ("cached", {"word": "x"}, "x", False),
        ("square", {"base": 3}, "9.0", False),
        ("square", {"base": 3, "exponent": 3}, "Error: TypeError: got an unexpected keyword argument 'exponent'", True),
        ("two", {"exponent": 3}, "8.0", False),
        ("decorated", {"word": "x"}, "x", False),
        ("wrapped", {"word": "x"}, "x", False),
        ("search", {"q": "x"}, '["x", 1.5, 3, [0, 1, 2], "2020-01-01", [1, 3]]', False),
        ("generate", {"n": 1}, "Error: TypeError: the tool returned a value of type generator; return text, ", True),
        ("make_object", {"n": 1}, "Error: TypeError: the tool returned a value of type object; return text, ", True),
        ("read_later", {"n": 1}, "1.0", False),
        ("paint", {"color": "red", "more": [2, None]}, '["RED", "TWO", null, null, "x"]', False),
        ("paint", {"color": 2, "more": [], "other": "red", "shade": "y"}, '["TWO", "RED", "y"]', False),
        ("paint", {"color": "blue", "more": []}, "Error: ValueError: 'blue' is not a valid Color", True),
        ("paint", {"color": "red"}, "Error: TypeError: missing a required", True),
        ("choose", {"k": 1}, "[1, 1]", False),
        ("choose", {"k": 1, "other": 2}, "[1, 2]", False),
        ("choose", {"other": 2}, "Error: TypeError: missing a required argument: 'k'", True),
        ("make", {"kind": "deque"}, "[1, 2]", False),
        ("make", {"kind": "range"}, "[0, 1, 2]", False),
        ("make", {"kind": "keys"}, '["b", "a"]', False),
        ("make", {"kind": "enum"}, '"red"', False),
        ("make", {"kind": "decimal"}, '"1.50"', False),
        ("make", {"kind": "keyed"}, '{"3": [{"red": 1}], "2020-01-01": 2}', False),
        ("make", {"kind": "bytes"}, "Error: TypeError: the tool returned a value of type bytes; return text, ", True),
        ("make", {"kind": "function"}, "Error: TypeError: the tool returned a value of type builtin_function", True),
        ("make", {"kind": "class"}, "Error: TypeError: the tool returned a value of type EnumType", True),
        ("make", {"kind": "iterator"}, "Error: TypeError: the tool returned a value of type count", True),
    ],
)
def test_unusual_tools(
    unusual: ToolRunner, name: str, arguments: dict[str, object], text: str, has_failed: bool
) -> None:
    found, failed = call(unusual, name, **arguments)
    assert failed == has_failed
    assert found.startswith(text) if failed else found == text
