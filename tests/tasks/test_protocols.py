"""Conversation protocols: order of agents, observations, dry runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ippo_cli.compose.load import build_config, compose_node, resolve_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import AgentConfig, TaskConfig
from ippo_cli.tasks.environment import Action, Environment, Step
from ippo_cli.tasks.protocols import TemplatedEnvironment, make_protocol_factory
from ippo_cli.tasks.task import dry_run_examples, max_turns_by_agent, multi_turn_agents, response_budgets
from ippo_cli.tasks.templates import first_message

ROW = {"letters": "ba"}
Make = Callable[..., TaskConfig]


@pytest.fixture(scope="module")
def task() -> Make:
    """A factory of tasks with agents that have these templates: a template, or (template, turn_template)."""
    plain = build_config(resolve_config(compose_node([]))).task

    def make(protocol: str, num_turns: int = 1, **templates: Any) -> TaskConfig:
        texts = {name: text if isinstance(text, tuple) else (text, None) for name, text in templates.items()}
        agents = {name: AgentConfig(template=first, turn_template=later) for name, (first, later) in texts.items()}
        return type(plain)(**{**vars(plain), "agents": agents, "protocol": protocol, "num_turns": num_turns})

    return make


def played(environment: Environment, answers: dict[str, list[Any]], example: Any = ROW) -> tuple[list[Any], Any]:
    """The observations of each step, and the last step; answers are consumed in order."""
    observation = environment.reset(example, seed=0)
    seen, given = [dict(observation)], {name: iter(texts) for name, texts in answers.items()}
    while True:
        result = [(name, next(given[name])) for name in observation]
        step = environment.step(
            {name: Action(*(text if isinstance(text, tuple) else (text,))) for name, text in result}
        )
        if step.terminated:
            return seen, step
        observation = step.observations
        seen.append(dict(observation))


def test_parallel_agents_act_once_without_others_messages(task: Make) -> None:
    made = make_protocol_factory(task("parallel", low="{letters}<", high="{letters}>"))()
    seen, last = played(made, {"low": ["a"], "high": [("b", False)]})
    assert seen == [{"low": "ba<", "high": "ba>"}]
    assert last.unfinished == {"high"}
    assert last.observations == last.rewards == {}


def test_caller_acts_until_it_calls_nobody(task: Make) -> None:
    config = task("calls", 4, main=("{letters}?", "{heard}|"), add="{agents.main}>", add2="{agents.main}>")
    seen, last = played(
        make_protocol_factory(config)(),
        {
            "main": ["@add 1", "no, a@add2.org, @add or @add2: 3", ("done, by @addition, @add-2 and a@add", False)],
            "add": ["one"],
            "add2": ["two"],
        },
    )
    assert seen == [
        {"main": "ba?"},
        {"add": "@add 1>"},
        {"main": "add: one|"},
        {"add2": "no, a@add2.org, @add or @add2: 3>"},
        {"main": "add2: two|"},
    ]
    assert last.unfinished == {"main"}


def test_calls_end_with_the_last_turn(task: Make) -> None:
    config = task("calls", 2, main="{letters}?", add="{agents.main}>")
    seen, _ = played(make_protocol_factory(config)(), {"main": ["@add", "@add"], "add": ["x"]})
    assert seen == [{"main": "ba?"}, {"add": "@add>"}, {"main": "\nadd: x\n"}]
    assert max_turns_by_agent(config) == {"main": 2, "add": 1}, "the last message of the caller is not a call"


def test_roles_of_the_environment_are_visible() -> None:
    class Seats:
        roles = {"low": "x"}  # noqa: RUF012

    assert TemplatedEnvironment(Seats(), {}).roles == {"low": "x"}  # type: ignore[arg-type]


def test_called_agents_read_the_caller(task: Make) -> None:
    with pytest.raises(ConfigError, match=r"task\.protocol=calls lets add act after others"):
        make_protocol_factory(task("calls", 2, main="{letters}?", add="{letters}>"))


def test_parallel_agents_observe_each_other_between_turns(task: Make) -> None:
    config = task("parallel", 3, low="{letters}<", high=("{letters}>", "{turn} {agents.low} {agents.high}|"))
    seen, _ = played(make_protocol_factory(config)(), {"low": ["a", "c", "e"], "high": ["b", "d", "f"]})
    assert seen == [
        {"low": "ba<", "high": "ba>"},
        {"low": "\nhigh: b\n", "high": "2 a b|"},
        {"low": "\nhigh: d\n", "high": "3 c d|"},
    ]


def test_simultaneous_messages_are_observed_by_all_others(task: Make) -> None:
    config = task("parallel", 3, low="{letters}<", mid="{letters}~", high="{letters}>")
    seen, _ = played(make_protocol_factory(config)(), {"low": list("adg"), "mid": list("beh"), "high": list("cfi")})
    assert seen[1] == {"low": "\nmid: b\nhigh: c\n", "mid": "\nlow: a\nhigh: c\n", "high": "\nlow: a\nmid: b\n"}
    assert seen[2]["mid"] == "\nlow: d\nhigh: f\n"


def test_sequential_agents_observe_earlier_answers(task: Make) -> None:
    config = task("sequential", low="{letters}<", mid="{heard}~", high="{agents.low}{agents.mid}>")
    seen, last = played(make_protocol_factory(config)(), {"low": [("a", False)], "mid": ["b"], "high": ["c"]})
    assert seen == [{"low": "ba<"}, {"mid": "low: a~"}, {"high": "ab>"}]
    assert last.unfinished == {"low"}


def test_dialogue_agents_observe_the_transcript(task: Make) -> None:
    both = "{transcript}|"
    config = task("dialogue", 2, low=("{letters}<", both), high=("{turn}{transcript}>", "{heard}|"))
    seen, last = played(make_protocol_factory(config)(), {"low": [("a", False), "c"], "high": ["b", "d"]})
    assert seen == [
        {"low": "ba<"},
        {"high": "1low: a>"},
        {"low": "low: a\nhigh: b|"},
        {"high": "low: c|"},
    ]
    assert last.unfinished == set(), "its last answer was not truncated"


def test_examples_and_answers_are_not_templates(task: Make) -> None:
    config = task("sequential", low="{letters}", high="{agents.low}")
    seen, _ = played(make_protocol_factory(config)(), {"low": ["{letters}{x"], "high": ["b"]}, {"letters": "{heard}"})
    assert seen == [{"low": "{heard}"}, {"high": "{letters}{x"}]


@pytest.mark.parametrize("protocol", ["parallel", "dialogue", "sequential"])
def test_reused_environment_has_no_state(protocol: str, task: Make) -> None:
    config = task(protocol, 1 if protocol == "sequential" else 2, low="{letters}<", high="{transcript}{turn}>")
    if protocol == "parallel":
        config = task(protocol, 2, low="{letters}<", high=("{letters}>", "{transcript}{turn}>"))
    answers = {"low": ["a", ("c", False)], "high": ["b", "d"]}
    used = make_protocol_factory(config)()
    first = played(used, answers)
    used.step({name: Action("zz", finished=False) for name in used.reset(ROW, 0)})
    assert played(used, answers) == first == played(make_protocol_factory(config)(), answers)


@pytest.mark.parametrize(
    ("protocol", "turns", "templates", "rule"),
    [
        ("sequential", 1, {"low": "{letters}", "high": "{letters}{turn}"}, "has no field with their messages; add"),
        ("sequential", 1, {"low": "{transcript}", "high": "{letters}{agents.high}"}, "lets high act after others"),
        ("sequential", 1, {"low": "{letters}"}, "needs several agents, and there is one"),
        ("sequential", 2, {"low": "{letters}", "high": "{heard}"}, "task.num_turns=2 has no effect"),
        ("dialogue", 2, {"low": "{letters}", "mid": "{heard}", "high": "{letters}"}, "lets high act after others"),
        ("dialogue", 2, {"low": "{letters}"}, "gives low several turns, but no other agent acts"),
        ("parallel", 2, {"low": "{letters}"}, "gives low several turns, but no other agent acts"),
        ("parallell", 1, {"low": "{letters}"}, "task.protocol=parallell is not known; use parallel, sequential"),
        ("no.py:debate", 1, {"low": "{letters}"}, "task.protocol=no.py:debate points to .*, which is not a file"),
    ],
)
def test_protocol_without_communication_is_rejected(
    protocol: str, turns: int, templates: dict[str, str], rule: str, task: Make
) -> None:
    with pytest.raises(ConfigError, match=rule):
        make_protocol_factory(task(protocol, turns, **templates))


@pytest.mark.parametrize(
    ("protocol", "turns", "templates", "rule"),
    [
        ("parallel", 1, {"low": "{letters}", "high": "{agents.low}"}, "high.template='{agents.low}' names 'agents.l"),
        (
            "parallel",
            2,
            {"low": "{letters}", "high": "{agents.low}"},
            "'agents.low', but that agent has no message yet",
        ),
        (
            "sequential",
            1,
            {"low": "{agents.high}", "high": "{heard}"},
            "'agents.high', but that agent has no message yet",
        ),
        (
            "sequential",
            1,
            {"low": "{letters}", "high": "{agents.lo}"},
            "agent; available fields: agents.low agents.high",
        ),
        ("sequential", 1, {"low": "{letter}", "high": "{heard}"}, "which examples do not have; their fields: letters"),
        ("parallel", 2, {"low": ("{letters}", "{hear}"), "high": "{letters}"}, "low.turn_template='{hear}' names"),
        ("dialogue", 2, {"low": ("{letters}", "{observation}"), "high": "{heard}"}, "names the field 'observation'"),
    ],
)
def test_unavailable_template_fields_are_rejected_by_dry_run(
    protocol: str, turns: int, templates: dict[str, Any], rule: str, task: Make
) -> None:
    with pytest.raises(ConfigError, match=rule):
        dry_run_examples(task(protocol, turns, **templates), [ROW])


def test_field_of_both_example_and_conversation_is_rejected(task: Make) -> None:
    row = {"letters": "ba", "turn": "left"}
    (result,) = dry_run_examples(task("parallel", low="{turn}"), [row]).turns
    assert result[1] == "left", "with one parallel turn only the example has values"
    with pytest.raises(ConfigError, match="names 'turn', which is a field of both the examples and the conversation"):
        dry_run_examples(task("sequential", low="{turn}", high="{heard}"), [row])


def test_dry_run_shows_conversation_with_placeholders(task: Make) -> None:
    config = task("dialogue", 2, low="{letters}<", high="{heard}>")
    shown = dry_run_examples(config, [ROW])
    assert (shown.outcome, shown.failure) == ("terminated", "")
    assert shown.turns == [
        ("low", "ba<", "(answer of low)"),
        ("high", "low: (answer of low)>", "(answer of high)"),
        ("low", "\nhigh: (answer of high)\n", "(answer of low)"),
        ("high", "\nlow: (answer of low)\n", "(answer of high)"),
    ]


def test_multi_turn_agents_and_max_turns(task: Make, own: Callable[[str], TaskConfig]) -> None:
    assert multi_turn_agents(task("sequential", low="{letters}", high="{heard}")) == []
    assert multi_turn_agents(task("dialogue", 2, low="{letters}", high="{heard}")) == ["low", "high"]
    assert max_turns_by_agent(task("dialogue", 99, low="{letters}", high="{heard}")) == {"low": 99, "high": 99}
    assert multi_turn_agents(own("debate")) == ["pro", "contra", "judge"], "its number of turns is unknown"


@pytest.mark.parametrize(
    ("overrides", "turns"),
    [
        ([], {"low": 1, "high": 1}),
        (["task.num_turns=3"], {"low": 3, "high": 3}),
        (["task.protocol=dialogue", "task.num_turns=2"], {"low": 2, "high": 2}),
        (["task.protocol=own.py:debate"], {"low": 1, "high": 1}),  # one turn, because the number is unknown
        (["task=ladder", "task.num_rungs=4"], {"climber": 4}),
        (["task=gymnasium", "task.env_id=FrozenLake-v1", "task.max_turns=7"], {"player": 7}),
        (["task=gymnasium", "task.env_id=FrozenLake-v1", "task.max_turns=null"], {"player": 1}),
        (["task=reasoning_gym", "task.dataset=chain_sum", "task.num_turns=2"], {"solver": 2}),
    ],
)
def test_response_budget_covers_all_turns_of_an_episode(overrides: list[str], turns: dict[str, int]) -> None:
    config = build_config(resolve_config(compose_node([*overrides, "rollout.max_new_tokens=5"])))
    assert response_budgets(config) == {name: 5 * count for name, count in turns.items()}


OWN = """
def debate(example, agents):
    example["letters"] += "!"
    answers = yield {name: f"{name} {example['letters']}" for name in agents[:2]}
    while answers != {"judge": "enough"}:
        answers = yield {"judge": " ".join(answers.values())}
    return {"judge": 1.0, "pro": 0.5}

class Debate:
    def reset(self, example, agents):
        self.rounds = getattr(self, "rounds", 0)
        return {"pro": example["letters"]}
    def step(self, answers):
        self.rounds += 1
        return ({"contra": answers["pro"]}, {"pro": 0.25}) if self.rounds == 1 else None

def endless(example, agents):
    while True:
        yield {"pro": "more"}

def plain(example, agents): return {"pro": "x"}
def stranger(example, agents): yield {"nobody": "x"}
def numbers(example, agents): yield {"pro": 3}
def nothing(example, agents):
    if False: yield
def early(example, agents):
    yield {"pro": example["field"]}
def picky(example, agents):
    yield {"pro": example["field"]}
def raising(example, agents):
    yield {"pro": "x"}
    1 / 0
def parsing(example, agents):
    answers = yield {"pro": "x"}
    yield {"contra": str(int(answers["pro"]) + 1)}
def calling(example, agents):
    answers = yield {"pro": "x"}
    yield {answers["pro"]: "your turn"}
def paying(example, agents):
    yield {"pro": "x"}
    return 3.0
"""


@pytest.fixture
def own(tmp_path: Path, task: Make) -> Callable[[str], TaskConfig]:
    (tmp_path / "own.py").write_text(OWN)
    return lambda name: task(f"{tmp_path}/own.py:{name}", pro="", contra="", judge="")


def test_generator_protocol_sends_and_receives(own: Callable[[str], TaskConfig]) -> None:
    made = make_protocol_factory(own("debate"))()
    answers = {"pro": ["yes"], "contra": ["no"], "judge": [("hm", False), "enough"]}
    expected = [{"pro": "pro ba!", "contra": "contra ba!"}, {"judge": "yes no"}, {"judge": "hm"}]
    for _ in range(2):
        seen, last = played(made, answers)
        assert seen == expected
        assert last.rewards == {"judge": 1.0, "pro": 0.5}
        assert last.unfinished == set()
    assert ROW == {"letters": "ba"}, "the protocol changes only its copy of the example"


def test_class_protocol_creates_one_object_per_episode(own: Callable[[str], TaskConfig]) -> None:
    made = make_protocol_factory(own("Debate"))()
    for _ in range(2):
        result = made.reset(ROW, 0)
        assert result == {"pro": "ba"}
        step = made.step({"pro": Action("x", finished=False)})
        assert (step.observations, step.rewards, step.terminated) == ({"contra": "x"}, {"pro": 0.25}, False)
        last = made.step({"contra": Action("y")})
        assert (last.terminated, last.unfinished) == (True, {"pro"})
    made.close()


def test_endless_protocol_dry_run_stops_at_limit(
    own: Callable[[str], TaskConfig],
) -> None:
    shown = dry_run_examples(own("endless"), [ROW])
    assert (len(shown.turns), shown.outcome) == (100, "")
    assert (
        max_turns_by_agent(own("endless"))
        == max_turns_by_agent(own("Debate"))
        == dict.fromkeys(("pro", "contra", "judge"))
    )


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("plain", "must yield the agents that act next, but it returns a dict"),
        ("stranger", "names 'nobody', which is not an agent; agents are pro contra judge"),
        ("numbers", "as a dict from agent to text, not {'pro': 3}"),
        ("nothing", "must begin with at least one agent"),
        ("early", r"fails \(.*own.py:\d+: KeyError: 'field'\); fix the error there"),
        ("paying", "rewards as a dict from agent to number, not 3.0"),
    ],
)
def test_invalid_user_protocol_is_rejected(name: str, rule: str, own: Callable[[str], TaskConfig]) -> None:
    with pytest.raises(ConfigError, match=rule) as raised:
        dry_run_examples(own(name), [ROW, ROW])
    assert str(raised.value).startswith("task.protocol=")


@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("raising", "own.py:32: ZeroDivisionError: division by zero"),
        ("parsing", "own.py:35: ValueError: invalid literal for int() with base 10: '(answer of pro)'"),
        ("calling", "names '(answer of pro)', which is not an agent; agents are pro contra judge"),
    ],
)
def test_protocol_failing_on_a_placeholder_is_not_rejected(
    name: str, failure: str, own: Callable[[str], TaskConfig]
) -> None:
    shown = dry_run_examples(own(name), [ROW])
    assert [turn[:2] for turn in shown.turns] == [("pro", "x")]
    assert failure in shown.failure
    assert not shown.is_user_error


def test_dry_run_tries_several_examples(own: Callable[[str], TaskConfig]) -> None:
    shown = dry_run_examples(own("picky"), [ROW, {"letters": "x", "field": "y"}])
    assert [turn[1] for turn in shown.turns] == ["y"]


class Counter:
    """An environment that returns all text so far."""

    def reset(self, example: Any, seed: int) -> dict[str, str]:
        self.history = f"{seed}"
        return {"low": self.history}

    def step(self, actions: Any) -> Step:
        self.history += "".join(action.text for action in actions.values())
        cut = len(self.history) > 2
        return Step(observations={"low": self.history}, rewards={"low": 1.0}, truncated=cut)

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("later", "result"), [("{turn}{observation}", "27a"), (None, "ba7a>")])
def test_observations_are_rendered_by_templates(later: str | None, result: str, task: Make) -> None:
    agents = task("parallel", low=("{letters}{observation}>", later)).agents
    world = TemplatedEnvironment(Counter(), agents)
    for _ in range(2):
        assert world.reset(ROW, 7) == {"low": "ba7>"}
        step = world.step({"low": Action("a")})
        assert (step.observations, step.rewards, step.truncated) == ({"low": result}, {"low": 1.0}, False)
        last = world.step({"low": Action("b")})
        assert last.truncated
        assert "7ab" in last.observations["low"], "the final observation uses the template, too"
    world.close()
    assert world.environment.closed  # pyright: ignore


def test_first_message_without_conversation_has_empty_fields(task: Make) -> None:
    agent = task("dialogue", low="{letters}[{transcript}{agents.high}{observation}]").agents["low"]
    assert first_message("low", agent, ROW) == "ba[]"
    with pytest.raises(ConfigError, match="names the field 'other', which examples do not have; their fields: letters"):
        first_message("low", task("parallel", low="{other}{heard}").agents["low"], ROW)
