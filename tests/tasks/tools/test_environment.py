"""Episodes with tools: who observes what, limits, numbers for the log, and the checks of the settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ippo_cli.compose.load import compose_node, from_yaml, load_config, resolve_config, to_yaml
from ippo_cli.config.checks import check_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config, ToolFormat
from ippo_cli.config.tools import tool_entries
from ippo_cli.runs.input_files import input_files
from ippo_cli.tasks.environment import Action, Environment
from ippo_cli.tasks.task import load_task, make_environment_pool, make_task_factory, max_turns_by_agent
from ippo_cli.tasks.tools.environment import ToolEnvironment
from ippo_cli.tasks.tools.formats import parse_tool_calls

FILE = Path(__file__).parent / "my_tools.py"
CALL = '{"name": "add", "arguments": {"a": 2, "b": 3}}'
WRONG = '{"name": "add", "arguments": {}}'


def configure(*overrides: str, tools: str = f"{FILE}:add") -> Config:
    """Two agents: `low` has tools and acts first, `high` reads its answer."""
    return load_config(
        [
            "task=sorting",
            "task.protocol=sequential",
            "task.agents.low.template='{letters}<'",
            "task.agents.high.template='{agents.low}>'",
            f"task.agents.low.tools={tools}",
            "task.agents.low.tool_format=json",
            "task.agents.low.max_tool_calls=3",
            *overrides,
        ]
    )


def act(text: str, *, finished: bool = True) -> Action:
    return Action(text, finished, parse_tool_calls(text, ToolFormat.json))


@pytest.fixture(scope="module")
def make() -> Callable[[], Environment]:
    return make_task_factory(configure().task)


def test_other_agents_read_the_answer_and_never_calls_or_results(make: Callable[[], Environment]) -> None:
    environment = make()
    assert environment.reset({"letters": "ab"}, 0) == {"low": "ab<"}
    step = environment.step({"low": act(f"I add: {CALL}")})
    assert (step.observations, step.terminated) == ({"low": "5"}, False)
    step = environment.step({"low": act(WRONG)})
    assert step.observations == {"low": "Error: TypeError: missing a required argument: 'a'"}
    assert environment.step({"low": act("five")}).observations == {"high": "five>"}
    step = environment.step({"high": Action("six")})
    assert step.terminated
    assert step.parts == {"tool_calls.low": 2, "failed_tool_calls.low": 1, "tool_turns.low": 1}
    environment.reset({"letters": "ab"}, 0)
    assert not any(environment.step({"low": act("five")}).parts.values())


def test_the_response_after_the_last_call_is_the_answer_without_its_calls(make: Callable[[], Environment]) -> None:
    environment = make()
    environment.reset({"letters": "ab"}, 0)
    assert environment.step({"low": act(f"[{CALL}, {CALL}]")}).observations == {"low": "5\n5"}
    step = environment.step({"low": act(f"[{CALL}, {CALL}]")})
    assert step.observations == {"low": "5\nError: no more than 3 calls are allowed; answer now"}
    assert environment.step({"low": act(f"Then {CALL}")}).observations == {"high": "Then>"}


def test_a_truncated_response_is_the_answer(make: Callable[[], Environment]) -> None:
    environment = make()
    environment.reset({"letters": "ab"}, 0)
    assert environment.step({"low": act(CALL, finished=False)}).observations == {"high": ">"}
    assert environment.step({"high": Action("x")}).unfinished == {"low"}


def test_simultaneous_agents_wait_for_those_with_calls() -> None:
    config = configure("task.protocol=parallel", "task.num_turns=2", "task.agents.high.template='{letters}>'")
    environment = make_task_factory(config.task)()
    environment.reset({"letters": "ab"}, 0)
    assert environment.step({"low": act(CALL), "high": act(CALL)}).observations == {"low": "5"}
    observations = environment.step({"low": act("five")}).observations
    assert observations == {"low": "\nhigh: \n", "high": "\nlow: five\n"}
    step = environment.step({"low": act(f"[{CALL}, {CALL}, {CALL}]"), "high": act("b")})
    assert step.observations == {"low": "5\n5\n5"}, "the limit is per turn"


def test_limits_of_turns_include_calls() -> None:
    task = configure().task
    assert max_turns_by_agent(task) == {"low": 4, "high": 1}
    assert make_environment_pool(task).workers > 1
    assert make_environment_pool(load_config(["task=sorting"]).task).workers == 1
    assert isinstance(make_task_factory(task)(), ToolEnvironment)
    assert not isinstance(make_task_factory(load_config(["task=sorting"]).task)(), ToolEnvironment)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("task.agents.low.tools=null", r"tool_format=json has no effect without tools"),
        ("task.agents.low.tools=tools.txt", r"low.tools=tools.txt names no tools"),
        ("task.agents.low.tools=[]", r"low.tools= is empty"),
        ("rollout.context=last_only", r"removes the question when low reads the result"),
        ("task.agents.low.max_tool_calls=0", r"max_tool_calls=0 is out of range"),
        ("task.agents.low.tool_timeout_s=0", r"tool_timeout_s=0.* is out of range"),
    ],
)
def test_settings_without_effect_are_rejected(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_config(configure(override), 1)


def test_a_run_keeps_its_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists and enumerations are plain values in a run's `config.yaml`, and paths are absolute."""
    monkeypatch.chdir(FILE.parent)
    entries = f"[my_tools.py,{FILE.name}:add,{{mcp:[server,'1']}}]"
    node = compose_node([f"task.agents.low.tools={entries}", "task.agents.low.tool_format=hermes"])
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(resolve_config(node)))
    agent = from_yaml(file).task.agents["low"]
    assert agent.tools == [str(FILE), f"{FILE}:add", {"mcp": ["server", "1"]}]
    assert tool_entries(agent.tools) == [str(FILE), f"{FILE}:add", ("server", "1")]
    assert agent.tool_format is ToolFormat.hermes
    assert {file.name for file in input_files(from_yaml(file))} == {"my_tools.py"}


def test_an_environment_task_has_no_tools() -> None:
    config = load_config(["task=ladder", f"task.agents.climber.tools={FILE}", "task.agents.climber.tool_format=json"])
    with pytest.raises(ConfigError, match="needs a task in which agents exchange messages"):
        check_config(config, 1)


def test_an_error_of_the_users_file_is_raised_with_the_task(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("\n1 / 0")
    config = configure(tools=str(file))
    check_config(config, 1)
    with pytest.raises(ConfigError, match=r"mine\.py:2: ZeroDivisionError"):
        load_task(config.task, 0)
