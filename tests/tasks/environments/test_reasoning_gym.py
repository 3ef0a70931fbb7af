"""Questions of reasoning_gym: their items, their scores, and corrections."""

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


def test_questions_and_scores_are_the_datasets_own() -> None:
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


def test_a_wrong_answer_is_told_its_score_and_may_be_corrected() -> None:
    config = reasoning_gym("countdown", 3)
    example = seed_examples(config, 0)[0][0]
    world = make_environment_factory(config)()
    answer = create_dataset("countdown", seed=example["dataset_seed"], size=1010)[example["index"]]["answer"]
    world.reset(example, 0)
    first, second = act(world, solo="1 + 1"), act(world, solo=answer)
    score = float(first.observations["solo"])
    assert 0.0 < score < 1.0, "this dataset pays a little for an expression of any kind"
    assert (first.rewards, first.terminated) == ({"solo": 0.0}, False)
    assert (second.rewards, second.terminated) == ({"solo": 1.0}, True)
    assert second.parts == {"correct": 1.0, "first_score": pytest.approx(score, rel=1e-2), "unreadable": 0.0}
    world.reset(example, 0)
    steps = [act(world, solo="1 + 1") for _ in range(3)]
    assert [step.terminated for step in steps] == [False, False, True]
    assert [step.rewards["solo"] for step in steps] == [0.0, 0.0, pytest.approx(score, rel=1e-2)]


def test_a_last_answer_that_was_cut_leaves_its_agent_unfinished_and_an_earlier_one_does_not() -> None:
    world = make_environment_factory(reasoning_gym("countdown", 2))()
    for cuts in ([False, False], [True, False], [False, True]):
        world.reset(seed_examples(reasoning_gym("countdown", 2), 0)[0][0], 0)
        first, last = (world.step({"solo": Action(text="1 + 1", finished=not cut)}) for cut in cuts)
        assert (first.terminated, first.unfinished, last.terminated) == (False, frozenset(), True)
        assert last.unfinished == frozenset({"solo"} if cuts[1] else ())


def test_with_a_tag_only_what_stands_in_the_last_one_is_the_answer() -> None:
    config = reasoning_gym("chain_sum", tag="final", **SUMS)
    example = seed_examples(config, 0)[0][0]
    world = make_environment_factory(config)()
    answer = create_dataset("chain_sum", seed=example["dataset_seed"], size=1010, **SUMS)[example["index"]]["answer"]
    told = {
        f"I think <final>7777</final> no, <final> {answer} </final>.": 1.0,
        answer: 0.0,
        f"<answer>{answer}</answer>": 0.0,
    }
    for text, score in told.items():
        world.reset(example, 0)
        assert act(world, solo=text).rewards == {"solo": score}, text


def test_an_answer_that_the_scoring_breaks_on_scores_nothing_and_is_counted() -> None:
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
def test_datasets_ask_the_same_again_whatever_global_generators_hold(name: str) -> None:
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
    assert stories[1][3] == random.random(), "global generators are left as they were"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            reasoning_gym("chain_sums"),
            "task.dataset=chain_sums is no dataset of reasoning_gym; use chain_sum[ ,].*python -c",
        ),
        (reasoning_gym("chain_sum", terms=2), "names terms, which task.dataset=chain_sum does not have; it has: min_t"),
        (reasoning_gym("chain_sum", size=2), "sets size, which follows from the run; leave it out"),
        (reasoning_gym("chain_sum", min_terms=9), "cannot be made .AssertionError: max_terms must be >= min_terms"),
    ],
)
def test_what_cannot_be_asked_is_refused(config, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_environment_factory(config)
