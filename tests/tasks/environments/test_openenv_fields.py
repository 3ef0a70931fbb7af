"""Fields of OpenEnv's schemas: the choice of a field, values of responses, user functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from making import openenv

from ippo_cli.config.errors import ConfigError
from ippo_cli.tasks.environment import InvalidReturn
from ippo_cli.tasks.environments.openenv_fields import Fields, make_action_writer, make_observation_reader

pytestmark = pytest.mark.needs_no_package
TEXT, WHOLE = {"type": "string"}, {"type": "integer"}
URL = "http://127.0.0.1:8000"


def fields(*required: str, **properties: dict[str, Any]) -> Fields:
    """Fields with the ones that every action and observation has."""
    every = {"metadata": {"type": "object"}, "done": {"type": "boolean"}, "reward": {"type": "number"}}
    moves = {"Move": {"enum": ["north", "south"], "type": "string"}}
    return Fields({"properties": {**every, **properties}, "required": list(required), "$defs": moves})


def write(text: str, found: Fields, **values: Any) -> Any:
    return make_action_writer(openenv(URL, **values), found)[0](text, {"seen": 3})


@pytest.mark.parametrize(
    "found",
    [
        fields("message", message=TEXT),
        fields(message=TEXT | {"default": ""}),
        fields(message={"anyOf": [TEXT, {"type": "null"}]}),
        fields("message", message=TEXT, volume=WHOLE, extra=TEXT),
        fields(message=TEXT, volume=WHOLE),
    ],
)
def test_response_is_the_only_text_field(found: Fields) -> None:
    assert write(" hello\n", found) == {"message": " hello\n"}


@pytest.mark.parametrize(
    ("part", "values"),
    [
        (WHOLE, {"3": 3, " -4\n": -4, "3.0": None, "three": None, "": None}),
        ({"type": "number"}, {"0.5": 0.5, "2": 2.0, "nan": None, "inf": None, "x": None}),
        ({"type": "boolean"}, {"true": True, " False ": False, "yes": None}),
        ({"$ref": "#/$defs/Move"}, {"north": "north", " South\n": "south", "n": None}),
        ({"anyOf": [{"$ref": "#/$defs/Move"}, {"type": "null"}]}, {"south": "south"}),
        ({"const": "go", "type": "string"}, {"go": "go", "stay": None}),
        ({}, {"any thing": "any thing"}),
    ],
)
def test_response_becomes_a_value_of_the_fields_type(part: dict[str, Any], values: dict[str, Any]) -> None:
    found = fields("move", move=part)
    for text, value in values.items():
        assert write(text, found, action_field="move") == (None if value is None else {"move": value}), text


def test_listed_values_are_the_legal_responses() -> None:
    assert make_action_writer(openenv(URL), fields("move", move={"$ref": "#/$defs/Move"}))[1] == ("north", "south")
    assert make_action_writer(openenv(URL), fields("move", move=TEXT))[1] == ()


@pytest.mark.parametrize(
    ("found", "values", "message"),
    [
        (
            fields("x", "y", x=WHOLE, y=WHOLE),
            {},
            r"task.action_field=null needs actions with one text or number; the .*",
        ),
        (fields(x=TEXT, y=TEXT), {}, r"fields of http://127.0.0.1:8000 are: x \(string\), y \(string\); set"),
        (fields("x", x={"type": "array"}), {}, r"x \(array\); set task.action_field=NAME, or task.action_function"),
        (Fields(None), {}, "are: none; set task.action_field=NAME"),
        (fields(x=TEXT), {"action_field": "z"}, r"task.action_field=z is no field of .*; it has: x \(string\)"),
        (
            fields(x={"type": "array"}),
            {"action_field": "x"},
            "task.action_field=x has the type array; write a function",
        ),
        (
            fields("x", "y", x=TEXT, y=TEXT),
            {"action_field": "x"},
            r"task.action_field=x is not the only field without a default \(y\); write a function that",
        ),
        (fields(x={"anyOf": [TEXT, WHOLE]}), {"action_field": "x"}, "has the type union"),
    ],
)
def test_actions_without_a_single_field_are_rejected(found: Fields, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_action_writer(openenv(URL, **values), found)


def test_server_without_schema_needs_names_of_fields() -> None:
    assert write("x", Fields(None), action_field="message") == {"message": "x"}
    assert make_observation_reader(openenv(URL, observation_field="hint"), Fields(None))({"hint": "up"}) == "up"
    with pytest.raises(ConfigError, match=r"task.observation_field=null needs observations with one text"):
        make_observation_reader(openenv(URL), Fields(None))


def test_observation_is_the_only_text_field_beside_numbers() -> None:
    read = make_observation_reader(openenv(URL), fields(hint=TEXT, tries=WHOLE))
    assert read({"hint": "up", "tries": 2}) == "up"
    for others in (fields(prompt=TEXT, messages={"type": "array"}), fields(a=TEXT, b=TEXT), fields(a=WHOLE)):
        with pytest.raises(ConfigError, match=r"set task.observation_field=NAME, or task.observation_function=path"):
            make_observation_reader(openenv(URL), others)


def test_observation_fields_of_other_types_are_json() -> None:
    read = make_observation_reader(openenv(URL, observation_field="board"), fields(board={"type": "array"}))
    assert read({"board": [1, "é"]}) == '[1, "é"]'
    with pytest.raises(InvalidReturn, match=r"the observation has no field board; it has: tries"):
        read({"tries": 1})
    with pytest.raises(ConfigError, match=r"task.observation_field=x is no field of .*; it has: board \(array\)"):
        make_observation_reader(openenv(URL, observation_field="x"), fields(board={"type": "array"}))


FUNCTIONS = """
class Action:
    def model_dump(self, mode):
        return {"tool_name": "say", "arguments": {"text": mode}}

def call(text):
    return None if text == "?" else {"tool_name": "say", "arguments": {"text": text}}

def make_action(text):
    return Action()

def index(text, observation):
    return {"place": observation["seen"]}

def number(text):
    return 3

def describe(observation):
    return " ".join(observation)

def count(observation):
    return len(observation)
"""


def test_user_functions_convert_actions_and_observations(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FUNCTIONS)
    several = fields("a", "b", a=TEXT, b={"type": "array"})

    def locate(name: str) -> str:
        return f"{tmp_path / 'own.py'}:{name}"

    assert write("hi", several, action_function=locate("call")) == {"tool_name": "say", "arguments": {"text": "hi"}}
    assert write("?", several, action_function=locate("call")) is None
    assert write("hi", several, action_function=locate("make_action"))["arguments"] == {"text": "json"}
    assert write("hi", several, action_function=locate("index")) == {"place": 3}
    read = make_observation_reader(openenv(URL, observation_function=locate("describe")), several)
    assert read({"a": 1, "b": 2}) == "a b"
    with pytest.raises(InvalidReturn, match=r"own.py:number must return the action as a dict, or None, not a int"):
        write("hi", several, action_function=locate("number"))
    with pytest.raises(InvalidReturn, match=r"own.py:count must return a text, not a int"):
        make_observation_reader(openenv(URL, observation_function=locate("count")), several)({})
    with pytest.raises(ConfigError, match=r"task.action_function=.*own.py:nothing names no function in"):
        write("hi", several, action_function=locate("nothing"))
    with pytest.raises(ConfigError, match=r"task.observation_function=describe does not name both a file or module"):
        make_observation_reader(openenv(URL, observation_function="describe"), several)
