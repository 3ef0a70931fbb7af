"""The cost of sampled alternatives that `mode=plan` prints, against episodes with as many turns as the task allows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import permutations, product
from pathlib import Path

import pytest
from small import small_config

from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.config.schema import Config
from ippo_cli.training.methods.credit import alternatives_cost

TOOLS = Path(__file__).parents[1] / "tasks" / "tools" / "my_tools.py"
TEMPLATES = [f"task.agents.{name}.template='{{letters}}{{heard}}'" for name in ("low", "high")]
UNEQUAL = ["task.agents.low.rollout.max_new_tokens=3", "task.agents.high.rollout.max_new_tokens=5"]
COUNTERFACTUAL = ["reward.credit_assignment=counterfactual", "reward.credit_alternatives=2"]
EPISODES = 16 * 2  # in the buffer, for each turn
Episode = Sequence[Sequence[str]]  # the agents that act in each step


def tools_of(*names: str) -> list[str]:
    return [
        f"task.agents.{name}.{key}"
        for name in names
        for key in (f"tools={TOOLS}:add", "tool_format=json", "max_tool_calls=2")
    ]


def printed_bounds(config: Config) -> tuple[int, int]:
    """Replayed episodes and sampled tokens per episode of the buffer."""
    found = re.search(r"(\d+) more episodes .* at most (\d+) tokens", alternatives_cost(config))
    assert found is not None
    return int(found[1]) // EPISODES, int(found[2]) // EPISODES


def count_cost(config: Config, episode: Episode) -> tuple[int, int]:
    """The turns of trained agents in an episode, and the most tokens that alternatives to them sample."""
    per_turn = {name: agent.rollout.max_new_tokens for name, agent in config.task.agents.items()}
    after = [sum(per_turn[name] for step in episode[place + 1 :] for name in step) for place in range(len(episode))]
    trained = [name for name, agent in config.task.agents.items() if not agent.frozen]
    turns = [per_turn[name] + after[place] for place, step in enumerate(episode) for name in step if name in trained]
    return len(turns), sum(turns)


def one_after_another(answers: Sequence[str], calls: Sequence[int]) -> Episode:
    """The steps of answers that have these numbers of tool calls before them."""
    return [[name] for name, count in zip(answers, calls, strict=True) for _ in range(1 + count)]


@pytest.mark.parametrize(
    ("keys", "answers", "with_tools"),
    [
        (["task.protocol=sequential"], ["low", "high"], ["low"]),
        (["task.protocol=sequential"], ["low", "high"], ["low", "high"]),
        (["task.protocol=dialogue", "task.num_turns=2"], ["low", "high"] * 2, ["high"]),
        (["task.protocol=calls", "task.num_turns=3"], ["low", "high", "low", "high", "low"], []),
        (["task.protocol=calls", "task.num_turns=3"], ["low", "high", "low", "high", "low"], ["low", "high"]),
    ],
    ids=["sequential, tools", "sequential, tools of both", "dialogue, tools", "calls", "calls, tools"],
)
def test_bound_is_the_cost_of_the_longest_episode(
    tmp_path: Path, keys: list[str], answers: list[str], with_tools: list[str]
) -> None:
    config, _ = small_config(tmp_path, *keys, *TEMPLATES, *UNEQUAL, *COUNTERFACTUAL, *tools_of(*with_tools))
    most = printed_bounds(config)
    choices = [range(3) if name in with_tools else (0,) for name in answers]
    costs = [count_cost(config, one_after_another(answers, calls)) for calls in product(*choices)]
    if "calls" in keys[0]:
        costs += [count_cost(config, [[name] for name in answers[:length]]) for length in (1, 3)]
    assert most == (max(turns for turns, _ in costs), max(tokens for _, tokens in costs))
    assert alternatives_cost(config).startswith("counterfactual: at most ")


@pytest.mark.parametrize("is_frozen", [False, True])
def test_bound_holds_for_simultaneous_answers_after_different_numbers_of_calls(tmp_path: Path, is_frozen: bool) -> None:
    keys = ["task.protocol=parallel", "task.num_turns=2", *UNEQUAL, *tools_of("low", "high")]
    keys += ["task.agents.low.max_tool_calls=3", "task.agents.high.max_tool_calls=1"]
    config, _ = small_config(tmp_path, *keys, *COUNTERFACTUAL, f"task.agents.high.frozen={is_frozen}")
    most = printed_bounds(config)
    costs = []
    for calls in product(range(4), range(2), repeat=2):
        rounds = [dict(zip(("low", "high"), pair, strict=True)) for pair in (calls[:2], calls[2:])]
        episode = [
            [name for name, count in own.items() if place <= count]
            for own in rounds
            for place in range(1 + max(own.values()))
        ]
        costs.append(count_cost(config, episode))
    assert max(turns for turns, _ in costs) == most[0]
    assert max(tokens for _, tokens in costs) <= most[1]


def test_called_agents_share_the_calls(tmp_path: Path) -> None:
    third = [
        "+task.agents={third:{template:'{agents.low}>',answer:'{low}'}}",
        "task.agents.third.rollout.max_new_tokens=2",
    ]
    keys = ["task.protocol=calls", "task.num_turns=3", *TEMPLATES, *third, *UNEQUAL, *COUNTERFACTUAL]
    config, _ = small_config(tmp_path, *normalize_arguments(keys))
    turns, tokens = printed_bounds(config)
    costs = [
        count_cost(config, [["low"], [first], ["low"], [second], ["low"]])
        for first, second in product(("high", "third"), repeat=2)
    ]
    assert turns == 5
    assert tokens >= max(cost for _, cost in costs)


@pytest.mark.parametrize("is_frozen", [False, True])
def test_bound_holds_for_every_order_of_turns_in_an_environment(tmp_path: Path, is_frozen: bool) -> None:
    (tmp_path / "world.py").write_text("class World:\n    reset = step = print\ndef make():\n    return World()\n")
    keys = [
        "task=environment",
        f"task.environment={tmp_path / 'world.py'}:make",
        "task.max_turns=3",
        "~task.agents.player",
        '+task.agents={low:{template:"{observation}"},high:{template:"{observation}"}}',
    ]
    keys += [*UNEQUAL, *COUNTERFACTUAL, f"task.agents.high.frozen={is_frozen}"]
    config, _ = small_config(tmp_path, *normalize_arguments(keys))
    turns, tokens = printed_bounds(config)
    for order in set(permutations(["low"] * 3 + ["high"] * 3)):
        found = count_cost(config, [[name] for name in order])
        assert found[0] == turns
        assert found[1] <= tokens
    assert alternatives_cost(config).startswith("counterfactual: at most ")


@pytest.mark.parametrize("task", ["protocol", "environment"])
def test_selected_turns_bound_the_episodes_of_tasks_without_a_limit(tmp_path: Path, task: str) -> None:
    if task == "protocol":
        (tmp_path / "protocol.py").write_text("def speak(example, agents):\n    yield {'low': 'a'}\n")
        keys = [f"task.protocol={tmp_path / 'protocol.py'}:speak"]
    else:
        (tmp_path / "world.py").write_text("class World:\n    reset = step = print\ndef make():\n    return World()\n")
        keys = [
            "task=environment",
            f"task.environment={tmp_path / 'world.py'}:make",
            "task.max_turns=null",
            "~task.agents.player",
            '+task.agents={low:{template:"{observation}"},high:{template:"{observation}"}}',
        ]
    every, _ = small_config(tmp_path, *normalize_arguments([*keys, *COUNTERFACTUAL]))
    assert "2 more episodes are replayed and scored for each turn of 2 agents in 16 episodes" in alternatives_cost(
        every
    )
    some, _ = small_config(tmp_path, *normalize_arguments([*keys, *COUNTERFACTUAL, "reward.credit_turns=3"]))
    text = alternatives_cost(some)
    assert "at most 192 more episodes are replayed and scored (16 x 6 turns x 2 alternatives)" in text
    assert "tokens" not in text, "an episode may have any number of turns"
