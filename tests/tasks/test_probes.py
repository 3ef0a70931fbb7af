"""Examples of the probe tasks and their reference answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from no_curriculum import NO_CURRICULUM
from spoken import spoken_once

from ippo_cli.compose.load import load_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import GridConfig, LettersConfig
from ippo_cli.rewards.build import build_reward
from ippo_cli.tasks.small_tasks import grid_examples, letters_examples
from ippo_cli.tasks.task import load_task, make_examples
from ippo_cli.tasks.templates import render_template

LETTERS = LettersConfig(
    kind="probe_letters",
    agents={},
    protocol="parallel",
    num_turns=1,
    primary_metric="sampled/score",
    curriculum=NO_CURRICULUM,
    alphabet="abcdef",
    length=4,
    train_size=500,
    eval_size=100,
)
GRID = GridConfig(
    kind="probe_grid",
    agents={},
    protocol="parallel",
    num_turns=1,
    primary_metric="sampled/score",
    curriculum=NO_CURRICULUM,
    size=4,
    train_size=192,
    eval_size=48,
)
BOTH = [(LETTERS, "letters"), (GRID, "start goal")]


def shown(config: LettersConfig | GridConfig, fields: str, seed: int = 0) -> tuple[list[str], list[str]]:
    """The prompt fields of training and held-out examples, as text."""
    train, held_out = make_examples(config, seed)
    texts = [[" ".join(str(row[field]) for field in fields.split()) for row in rows] for rows in (train, held_out)]
    return texts[0], texts[1]


@pytest.mark.parametrize(("config", "fields"), BOTH)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_prompts_are_distinct_and_held_out_is_disjoint(
    config: LettersConfig | GridConfig, fields: str, seed: int
) -> None:
    train, held_out = shown(config, fields, seed)
    assert (len(train), len(held_out)) == (config.train_size, config.eval_size)
    assert len({*train, *held_out}) == config.train_size + config.eval_size


@pytest.mark.parametrize(("config", "fields"), BOTH)
def test_examples_depend_only_on_seed(config: LettersConfig | GridConfig, fields: str) -> None:
    assert shown(config, fields, 1) == shown(config, fields, 1)
    assert shown(config, fields, 1) != shown(config, fields, 2)
    assert shown(replace(config, train_size=20), fields, 1)[1] == shown(config, fields, 1)[1]


def test_next_letter_is_cyclic_successor() -> None:
    train, _ = letters_examples(replace(LETTERS, alphabet="cabcab", length=3, train_size=20, eval_size=7), seed=0)
    assert {(row["letters"][-1], row["last"], row["next"]) for row in train} <= {*zip("abc", "abc", "bca", strict=True)}


@pytest.mark.parametrize(
    ("start", "goal", "horizontal", "vertical"),
    [("a3", "c2", "rr", "d"), ("c2", "a3", "ll", "u"), ("d1", "d4", "", "uuu")],
)
def test_shortest_walk_letters(start: str, goal: str, horizontal: str, vertical: str) -> None:
    rows = [row for part in grid_examples(GRID, seed=0) for row in part]
    row = next(row for row in rows if (row["start"], row["goal"]) == (start, goal))
    assert (row["horizontal"], row["vertical"], row["size"]) == (horizontal, vertical, 4)


@pytest.mark.parametrize(
    ("source", "config", "possible"),
    [
        (letters_examples, replace(LETTERS, alphabet="ab", length=3, train_size=8, eval_size=1), "8 strings of 3"),
        (grid_examples, replace(GRID, size=2, train_size=12, eval_size=1), "12 pairs of cells of a 2 x 2"),
    ],
)
def test_too_many_examples_are_rejected(
    source: Callable[..., object], config: LettersConfig | GridConfig, possible: str
) -> None:
    with pytest.raises(
        ConfigError, match=rf"^task\.train_size=\d+ task\.eval_size=1 request .* the {possible} .*; lower"
    ):
        source(config, seed=0)


@pytest.mark.parametrize("probe", ["probe_constant", "probe_conditional", "probe_grid"])
def test_reference_answers_score_one_and_longer_ones_less(probe: str) -> None:
    config = load_config([f"+experiment={probe}"])
    task, agents = load_task(config.task, config.seed), config.task.agents
    reward = build_reward(config.reward, agents)
    assert len(agents) == 2
    for extra, right in (("", True), ("r", False)):
        for rows in (task.train, task.held_out):
            answers = {
                name: [render_template(agent.answer or "", row, name) + extra for row in rows]
                for name, agent in agents.items()
            }
            given = reward(spoken_once(rows, answers))
            assert given.team is not None
            assert all((score == 1.0) == right and 0.0 <= score <= 1.0 for score in given.team)
            assert given.parts["exact"] == [float(right)] * len(rows)
    longest = max(len(render_template(agent.answer or "", row, "")) for agent in agents.values() for row in task.train)
    assert longest <= config.rollout.max_new_tokens


def test_constant_and_conditional_answers() -> None:
    for probe, answers in (("probe_constant", 1), ("probe_conditional", 6)):
        config = load_config([f"task={probe}"])
        train = load_task(config.task, 0).train
        for name, agent in config.task.agents.items():
            assert len({render_template(agent.answer or "", row, name) for row in train}) == answers
