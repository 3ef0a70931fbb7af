"""`task=reasoning_gym`: questions of a reasoning_gym dataset, scored by the dataset."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
from reasoning_gym.factory import DATASETS, create_dataset
from reasoning_gym.utils import extract_answer

from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import ReasoningGymConfig
from ippo_cli.tasks.environment import Action, Step
from ippo_cli.tasks.environments.ids import check_registered
from ippo_cli.types import Example

RUN_SETTINGS = ("seed", "size")  # dataset settings that the run determines
MAX_SCORE = 1.0  # the highest score of an answer


class QuestionPool:
    """A dataset's items by (dataset seed, index), shared by all environments of a process: some are slow to create.

    A lock serializes item creation and scoring, and the global random generators are seeded and restored around them,
    because some datasets use them.
    """

    def __init__(self, config: ReasoningGymConfig) -> None:
        assert config.dataset is not None
        self.name, self.arguments = config.dataset, config.dataset_args
        self.size = config.train_size + config.eval_size
        self._datasets: dict[int, Any] = {}
        self._lock = Lock()

    def get_item(self, seed: int, index: int) -> dict[str, Any]:
        with self._lock, _seed_global_generators(seed + index):
            return self._dataset(seed)[index]

    def score(self, answer: str | None, item: dict[str, Any], seed: int) -> float:
        with self._lock, _seed_global_generators(seed):
            return float(self._dataset(seed).score_answer(answer, item))

    def _dataset(self, seed: int) -> Any:
        if seed not in self._datasets:
            self._datasets[seed] = create_dataset(self.name, seed=seed, size=self.size, **self.arguments)
        return self._datasets[seed]


@contextmanager
def _seed_global_generators(seed: int) -> Iterator[None]:
    """Seed the global generators of Python and NumPy, and restore their state at exit."""
    before = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


class ReasoningGymEnvironment:
    """One question for one agent, with up to `num_turns` answers.

    After a wrong answer the agent observes its score and may answer again. The reward is the score of the last answer;
    earlier answers have reward 0. An answer for which the dataset's scoring raises an exception scores 0. If the last
    answer was truncated, the agent is unfinished, as in a conversation.
    """

    def __init__(self, questions: QuestionPool, config: ReasoningGymConfig) -> None:
        self.questions = questions
        self.agent = next(iter(config.agents))
        self.num_turns = config.num_turns
        self.answer_tag = config.answer_tag

    def reset(self, example: Example, seed: int) -> Mapping[str, str]:
        """Begin an episode; the example alone determines the question, so `seed` is unused."""
        self.dataset_seed, self.index = example["dataset_seed"], example["index"]
        self.item = self.questions.get_item(self.dataset_seed, self.index)
        self.turns = self.unreadable = 0
        return {self.agent: self.item["question"]}

    def step(self, actions: Mapping[str, Action]) -> Step:
        action = actions[self.agent]
        score = self._score(action.text)
        self.turns += 1
        if self.turns == 1:
            self.first_score = score
        done = score >= MAX_SCORE or self.turns == self.num_turns
        return Step(
            observations={self.agent: f"{score:.3g}"},
            rewards={self.agent: score if done else 0.0},
            terminated=done,
            unfinished=frozenset(() if action.finished or not done else (self.agent,)),
            parts={
                "correct": float(score >= MAX_SCORE),
                "first_score": self.first_score,
                "unreadable": float(self.unreadable),
            },
        )

    def actions(self) -> Mapping[str, Sequence[str]]:
        """Return a well-formed answer: the solution of another question, so that no solution is revealed."""
        other = (self.index - 1) % self.questions.size
        answer = str(self.questions.get_item(self.dataset_seed, other)["answer"])
        return {self.agent: [f"<{self.answer_tag}>{answer}</{self.answer_tag}>" if self.answer_tag else answer]}

    def close(self) -> None:
        """Do nothing: there are no resources."""

    def _score(self, text: str) -> float:
        answer = extract_answer(text, self.answer_tag) if self.answer_tag else text.strip()
        try:
            return self.questions.score(answer, self.item, self.dataset_seed)
        except Exception:  # some datasets raise on malformed answers
            self.unreadable += 1
            return 0.0


def make_reasoning_gym_factory(config: ReasoningGymConfig) -> Callable[[], ReasoningGymEnvironment]:
    """Return a factory of environments; `ConfigError` if the dataset cannot be created."""
    assert config.dataset is not None
    check_registered(
        f"task.dataset={config.dataset}",
        config.dataset,
        DATASETS,
        kind="dataset of reasoning_gym",
        listing="from reasoning_gym.factory import *; print(*sorted(DATASETS))",
    )
    setting = f"task.dataset_args={config.dataset_args}"
    settings = [
        field.name for field in dataclasses.fields(DATASETS[config.dataset][1]) if field.name not in RUN_SETTINGS
    ]
    for name in config.dataset_args:
        if name in RUN_SETTINGS:
            raise ConfigError(f"{setting}", f"sets {name}, which the run determines", "remove it")
        if name not in settings:
            raise ConfigError(
                f"{setting}",
                f"names {name}, which task.dataset={config.dataset} does not have",
                "it has: " + " ".join(settings),
            )
    questions = QuestionPool(config)
    try:
        questions.get_item(0, 0)
    except Exception as error:  # the dataset validates its settings with assertions
        raise ConfigError(
            f"task.dataset={config.dataset} {setting} task.train_size={config.train_size} "
            f"task.eval_size={config.eval_size}",
            f"cannot be created ({type(error).__name__}: {error})",
            "correct the settings",
        ) from error
    return lambda: ReasoningGymEnvironment(questions, config)
