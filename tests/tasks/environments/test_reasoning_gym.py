"""Questions of reasoning_gym: items, scores, corrections."""

from __future__ import annotations

import random

import pytest
from making import act, reasoning_gym
from reasoning_gym.factory import create_dataset

from ippo_cli.config.errors import ConfigError
from ippo_cli.tasks.environment import Action
from ippo_cli.tasks.environments.build import make_environment_factory
from ippo_cli.tasks.environments.examples import seed_examples

SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}


def test_questions_and_scores_match_dataset() -> None:
    config = reasoning_gym("chain_sum", **SUMS)
    train, held_out = seed_examples(config, 3)
    dataset = create_dataset("chain_sum", seed=train[0]["dataset_seed"], size=1010, **SUMS)
    world = make_environment_factory(config)()
    for example in (train[0], train[999], held_out[9]):
        item = dataset[example["index"]]
        assert world.reset(example, 0) == {"solo": item["question"]}
        step = act(world, solo=f" {item['answer']}\n")
        assert (step.rewards, step.terminated, step.parts["correct"]) == ({"solo": 1.0}, True, 1.0)
        world.reset(example, 1)
        step = act(world, solo="no")
        expected = dataset.score_answer("no", item)
        assert (step.rewards, step.terminated, step.parts["correct"]) == ({"solo": expected}, True, 0.0)


def test_wrong_answer_may_be_corrected() -> None:
    config = reasoning_gym("countdown", 3)
    example = seed_examples(config, 0)[0][0]
    world = make_environment_factory(config)()
    answer = create_dataset("countdown", seed=example["dataset_seed"], size=1010)[example["index"]]["answer"]
    world.reset(example, 0)
    first, second = act(world, solo="1 + 1"), act(world, solo=answer)
    score = float(first.observations["solo"])
    assert 0.0 < score < 1.0, "this dataset scores any expression above 0"
    assert (first.rewards, first.terminated) == ({"solo": 0.0}, False)
    assert (second.rewards, second.terminated) == ({"solo": 1.0}, True)
    assert second.parts == {"correct": 1.0, "first_score": pytest.approx(score, rel=1e-2), "unreadable": 0.0}
    world.reset(example, 0)
    steps = [act(world, solo="1 + 1") for _ in range(3)]
    assert [step.terminated for step in steps] == [False, False, True]
    assert [step.rewards["solo"] for step in steps] == [0.0, 0.0, pytest.approx(score, rel=1e-2)]


def test_truncated_last_answer_leaves_agent_unfinished() -> None:
    world = make_environment_factory(reasoning_gym("countdown", 2))()
    for cuts in ([False, False], [True, False], [False, True]):
        world.reset(seed_examples(reasoning_gym("countdown", 2), 0)[0][0], 0)
        first, last = (world.step({"solo": Action(text="1 + 1", finished=not cut)}) for cut in cuts)
        assert (first.terminated, first.unfinished, last.terminated) == (False, frozenset(), True)
        assert last.unfinished == frozenset({"solo"} if cuts[1] else ())


def test_answer_tag_selects_last_tagged_text() -> None:
    config = reasoning_gym("chain_sum", tag="final", **SUMS)
    example = seed_examples(config, 0)[0][0]
    world = make_environment_factory(config)()
    answer = create_dataset("chain_sum", seed=example["dataset_seed"], size=1010, **SUMS)[example["index"]]["answer"]
    result = {
        f"I think <final>7777</final> no, <final> {answer} </final>.": 1.0,
        answer: 0.0,
        f"<answer>{answer}</answer>": 0.0,
    }
    for text, score in result.items():
        world.reset(example, 0)
        assert act(world, solo=text).rewards == {"solo": score}, text


def test_scoring_error_scores_zero_and_is_counted() -> None:
    config = reasoning_gym("prime_factorization")
    world = make_environment_factory(config)()
    world.reset(seed_examples(config, 0)[0][0], 0)
    with pytest.raises(ValueError, match="invalid literal"):
        world.questions.score("x", world.item, world.dataset_seed)
    step = act(world, solo="x")
    assert step.rewards == {"solo": 0.0}
    assert step.parts["unreadable"] == 1.0


@pytest.mark.parametrize(
    "name",
    ["acre", "codeio", "countdown", "figlet_font", "gsm_symbolic", "list_functions", "pool_matrix", "word_ladder"],
)
def test_items_do_not_depend_on_global_generators(name: str) -> None:
    config = reasoning_gym(name)
    config.train_size = 60
    example = seed_examples(config, 0)[0][33]
    stories = []
    for seed in (1, 2):
        random.seed(seed)
        world = make_environment_factory(config)()
        stories.append((world.reset(example, 0), world.actions(), act(world, solo="12 x").rewards, random.random()))
    assert stories[0][:3] == stories[1][:3]
    random.seed(2)
    assert stories[1][3] == random.random(), "global generators are restored"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            reasoning_gym("chain_sums"),
            "task.dataset=chain_sums is not a known dataset of reasoning_gym; use chain_sum[ ,].*python -c",
        ),
        (reasoning_gym("chain_sum", terms=2), "names terms, which task.dataset=chain_sum does not have; it has: min_t"),
        (reasoning_gym("chain_sum", size=2), "sets size, which the run determines; remove it"),
        (reasoning_gym("chain_sum", min_terms=9), "cannot be created .AssertionError: max_terms must be >= min_terms"),
    ],
)
def test_invalid_datasets_are_rejected(config, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_environment_factory(config)
