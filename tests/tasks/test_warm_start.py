"""Warm-start lessons: episodes with reference answers or random legal actions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from ippo_cli.agents.initial import check_has_lessons, warm_start_lessons
from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import AgentConfig, Alphabet, TinyActorConfig
from ippo_cli.tasks.environment import Action, Step
from ippo_cli.tasks.task import load_task
from ippo_cli.tasks.templates import render_template
from ippo_cli.tasks.warm_start import MAX_EPISODE_STEPS, MAX_STEPS, play_lessons


class Chain:
    """Agents act once each, in order, and observe the previous answer."""

    def __init__(self, *agents: str) -> None:
        self.agents = agents

    def reset(self, example: Mapping[str, object], seed: int) -> Mapping[str, str]:
        self.spoken = 0
        return {self.agents[0]: f"{example['word']}>"}

    def step(self, actions: Mapping[str, Action]) -> Step:
        (result,) = actions.values()
        self.spoken += 1
        if self.spoken == len(self.agents):
            return Step(observations={}, terminated=True)
        return Step(observations={self.agents[self.spoken]: f"{result.text}<"})

    def close(self) -> None: ...


class Endless:
    """Never ends; observes one of two letters, selected by the seed; two letters are legal actions."""

    def reset(self, example: Mapping[str, object], seed: int) -> Mapping[str, str]:
        self.observation = "pq"[seed % 2]
        return {"solo": self.observation}

    def step(self, actions: Mapping[str, Action]) -> Step:
        assert actions["solo"].text in ("x", "y")
        return Step(observations={"solo": self.observation})

    def actions(self) -> Mapping[str, Sequence[str]]:
        return {"solo": ["x", "y"]}

    def close(self) -> None: ...


def agent(answer: str | None = None, taught: str | None = None) -> AgentConfig:
    return AgentConfig(template="", answer=answer, warm_start_answer=taught)


ROWS = [{"word": "ab", "sum": "3", "any": "7"}, {"word": "c", "sum": "4", "any": "8"}]


def test_later_agents_observe_taught_answers_of_earlier_ones() -> None:
    agents = {"one": agent("{sum}", "{any}"), "two": agent("{sum}")}
    assert play_lessons(Chain("one", "two"), agents, ROWS, 0) == {
        "one": [[("ab>", "7")], [("c>", "8")]],
        "two": [[("7<", "3")], [("8<", "4")]],
    }


def test_agent_without_known_answers_has_no_lessons() -> None:
    agents = {"one": agent(), "two": agent("{sum}")}
    assert play_lessons(Chain("one", "two"), agents, ROWS, 0)["one"] == []
    history = play_lessons(Chain("two", "one"), agents, ROWS, 0)
    assert history == {"one": [], "two": [[("ab>", "3")], [("c>", "4")]]}


def test_endless_episodes_use_fewer_examples() -> None:
    asked: list[Mapping[str, object]] = []

    class Counted(Endless):
        def reset(self, example: Mapping[str, object], seed: int) -> Mapping[str, str]:
            asked.append(example)
            return super().reset(example, seed)

    rows = [{"word": "a"}] * 8192
    lessons = play_lessons(Counted(), {"solo": agent()}, rows, 0)["solo"]
    assert len(asked) == len(lessons) == MAX_STEPS // MAX_EPISODE_STEPS
    once = play_lessons(Chain("solo"), {"solo": agent("x")}, rows, 0)["solo"]
    assert len(once) == 8192, "all episodes that end are played"


def test_random_play_depends_only_on_seed_and_is_uniform() -> None:
    found = [play_lessons(Endless(), {"solo": agent()}, ROWS * 50, seed)["solo"] for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert {len(lesson) for lesson in found[0]} == {MAX_EPISODE_STEPS}
    counts = Counter(turn for lesson in found[0] for turn in lesson)
    assert set(counts) == {("p", "x"), ("p", "y"), ("q", "x"), ("q", "y")}
    for result in "pq":
        share = counts[result, "x"] / (counts[result, "x"] + counts[result, "y"])
        assert share == pytest.approx(0.5, abs=0.05)


def test_lesson_ends_at_truncation() -> None:
    class Cut(Endless):
        def step(self, actions: Mapping[str, Action]) -> Step:
            return replace(super().step(actions), truncated=True)

    assert [len(lesson) for lesson in play_lessons(Cut(), {"solo": agent()}, ROWS, 0)["solo"]] == [1, 1]


def test_ladder_lessons_are_random() -> None:
    config = load_config(["task=ladder"])
    lessons = warm_start_lessons(["climber"], config, load_task(config.task, 0))
    assert {len(lesson) for lesson in lessons} == {5}
    assert set("abcdefgh") == {answer for lesson in lessons for _, answer in lesson}


def test_history_latest_splits_lessons_into_turns() -> None:
    whole, alone = (["task=ladder", f"rollout.context={context_mode}"] for context_mode in ("append", "last_only"))
    config = load_config(alone)
    lessons = warm_start_lessons(["climber"], config, load_task(config.task, 0))
    turns = [
        turn
        for lesson in warm_start_lessons(["climber"], load_config(whole), load_task(config.task, 0))
        for turn in lesson
    ]
    assert [list(lesson) for lesson in lessons] == [[turn] for turn in turns]


def test_single_turn_agents_learn_reference_answers() -> None:
    config = load_config(["task.train_size=20", "task.eval_size=4"])
    task = load_task(config.task, 0)
    for name, asked in config.task.agents.items():
        assert asked.answer is not None
        expected = [
            [(render_template(asked.template, row, ""), render_template(asked.answer, row, ""))] for row in task.train
        ]
        assert warm_start_lessons([name], config, task) == expected


def test_missing_lessons_are_rejected() -> None:
    actor = load_config([]).actor
    assert isinstance(actor, TinyActorConfig)
    with pytest.raises(
        ConfigError, match=r"answer=null leaves actor=tiny no reference answers .*actor\.alphabet=printable"
    ):
        check_has_lessons("solo", actor, [])
    check_has_lessons("solo", actor, [[("a", "b")]])
    check_has_lessons("solo", replace(actor, alphabet=Alphabet.printable), [])


def test_environment_error_fails_only_its_episode() -> None:
    class Fragile(Chain):
        def reset(self, example: Mapping[str, object], seed: int) -> Mapping[str, str]:
            if example is ROWS[0]:
                raise KeyError("moves")
            return super().reset(example, seed)

    agents = {"one": agent("yes"), "two": agent("no")}
    whole, lessons = (play_lessons(made("one", "two"), agents, ROWS, 0) for made in (Chain, Fragile))
    assert len(ROWS) > 1
    assert lessons == {name: taught[1:] for name, taught in whole.items()}
