"""Replays recorded responses in a task's environment, and scores them with the evaluation code of training."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch

from ippo_cli.benchmark.tasks import BENCHMARK_TASKS
from ippo_cli.compose.arguments import normalize_arguments
from ippo_cli.compose.configured import load_training_config
from ippo_cli.config.errors import ConfigError
from ippo_cli.config.schema import Config
from ippo_cli.controls.arms import NO_MESSAGES, SINGLE_ARMS, overrides_without_messages, replace_keys
from ippo_cli.rewards.build import build_reward
from ippo_cli.rewards.contract import RewardContext, close_reward, prepare_reward
from ippo_cli.rollout.episode_state import environment_seed
from ippo_cli.rollout.generator import SamplingStream
from ippo_cli.tasks.dry_run import SupportsActions
from ippo_cli.tasks.environment import Action, Environment, closing_environment
from ippo_cli.tasks.observations import check_observations, check_step
from ippo_cli.tasks.task import Task, load_held_out, make_examples, make_task_factory
from ippo_cli.tasks.warm_start import choose_answer
from ippo_cli.training.evaluate import evaluate
from ippo_cli.types import Completion, Episode, Example, Turn

Responses = Sequence[tuple[str, str]]
"""Agent and text of every turn of an episode, in the order of the turns; agents that act at once in any order."""
MAX_STEPS = 10_000
EVERY_EVALUATION = ("evaluation.greedy=false",)


class ReplayError(Exception):
    """Responses do not fit the episode; the message is the rule that they break."""


@dataclass(frozen=True, kw_only=True)
class RowSet:
    """The rows of one seed of a task, as the runs with this seed evaluate or train them."""

    config: Config
    examples: Sequence[Example]


def is_playable(name: str) -> bool:
    """Return whether the package that a task needs is installed."""
    package = BENCHMARK_TASKS[name].package
    return package is None or find_spec(package) is not None


def check_package(name: str) -> None:
    """Raise `ConfigError` if the package that a task needs is not installed."""
    if not is_playable(name):
        package = BENCHMARK_TASKS[name].package
        rule = f"needs the package {package}, which is not installed"
        raise ConfigError(name, rule, f"run pip install 'ippo-cli[{package}]'")


def list_arm_overrides(name: str, arm: str) -> list[str]:
    """Return the overrides of the task of an arm, which the task has."""
    task = BENCHMARK_TASKS[name]
    if arm in SINGLE_ARMS:
        return replace_keys(task.overrides, task.single)
    if arm == NO_MESSAGES:
        config = load_training_config(normalize_arguments(list(task.overrides)))
        return replace_keys(task.overrides, overrides_without_messages(config))
    return list(task.overrides)


def load_rows(name: str, arm: str, seed: int, *, is_train: bool = False) -> RowSet:
    """Load the held-out or training rows of a seed. Raises `ConfigError`."""
    metric = BENCHMARK_TASKS[name].metric
    overrides = [*list_arm_overrides(name, arm), f"task.primary_metric={metric}", *EVERY_EVALUATION, f"seed={seed}"]
    config = load_training_config(normalize_arguments(overrides))
    examples = make_examples(config.task, seed)[0] if is_train else load_held_out(config.task, seed)
    return RowSet(config=config, examples=examples)


def row_seed(config: Config, row: int) -> int:
    """Return the environment's seed in the evaluation of a row."""
    return environment_seed(SamplingStream(seed=config.evaluation.seed, purpose="evaluation"), row)


def replay_row(rows: RowSet, environment: Environment, row: int, responses: Responses) -> Episode:
    """Play the responses to a row. Raises `ReplayError` if they do not fit the episode."""
    example = rows.examples[row]
    observations = environment.reset(example, row_seed(rows.config, row))
    check_observations(observations)
    remaining = deque(responses)
    turns: list[Turn] = []
    rewards: list[Mapping[str, float]] = []
    parts: dict[str, float] = {}
    ended: frozenset[str] = frozenset()
    while True:
        answers = _take_answers(remaining, list(observations), len(responses))
        turns += [_make_turn(name, len(rewards), observations[name], text) for name, text in answers.items()]
        step = environment.step({name: Action(answers[name]) for name in observations})
        check_step(step)
        rewards.append(dict(step.rewards))
        parts |= step.parts
        ended |= step.ended
        if step.terminated or step.truncated or len(rewards) >= MAX_STEPS:
            break
        observations = step.observations
    if remaining:
        raise ReplayError(
            f"has {len(responses)} responses, and the episode ends after {len(responses) - len(remaining)}"
        )
    return Episode(
        example=example,
        index=row,
        turns=turns,
        rewards=rewards,
        final={},
        last_observations=dict(step.observations),
        terminated=step.terminated,
        unfinished=step.unfinished,
        ended=ended,
        truncation="" if step.terminated else "environment",
        failure=None,
        parts=parts,
    )


def _take_answers(remaining: deque[tuple[str, str]], acting: Sequence[str], count: int) -> dict[str, str]:
    """Remove and return one response of every agent that acts."""
    answers: dict[str, str] = {}
    for _ in acting:
        waiting = " and ".join(name for name in acting if name not in answers)
        if not remaining:
            raise ReplayError(f"has too few responses ({count}): {waiting} acts next")
        agent, text = remaining.popleft()
        if agent not in acting or agent in answers:
            raise ReplayError(f"has a response of {agent} at position {count - len(remaining)}, where {waiting} acts")
        answers[agent] = text
    return answers


def _make_turn(agent: str, step: int, observation: str, text: str) -> Turn:
    empty = torch.zeros(0)
    completion = Completion(ids=empty.long(), logprobs=empty, behavior_logprobs=empty, text=text, finished=True)
    return Turn(agent=agent, step=step, observation=observation, prompt=[], completion=completion)


def score_episodes(rows: RowSet, episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the metrics of an evaluation with these episodes, one for each row."""
    config = rows.config
    reward = build_reward(config.reward, config.task.agents)
    try:
        prepare_reward(reward, RewardContext(device=torch.device("cpu"), folder=None))
        found = evaluate(
            lambda batch, _: [episodes[row] for row in batch.index.tolist()],
            Task(train=[], held_out=rows.examples),
            reward,
            config,
        )
    finally:
        close_reward(reward)
    return found.metrics


def play_valid_responses(rows: RowSet, row: int, rng: random.Random) -> list[tuple[str, str]]:
    """Return responses of a warm start: the task's own answers, or random legal actions."""
    config, responses = rows.config, []
    environment = make_task_factory(config.task)()
    with closing_environment(environment):
        observations = environment.reset(rows.examples[row], row_seed(config, row))
        for _ in range(MAX_STEPS):
            legal = environment.actions() if isinstance(environment, SupportsActions) else {}
            answers = {
                name: choose_answer(name, config.task.agents[name], rows.examples[row], legal.get(name, ()), rng) or ""
                for name in observations
            }
            responses += answers.items()
            step = environment.step({name: Action(text) for name, text in answers.items()})
            if step.terminated or step.truncated:
                break
            observations = step.observations
    return responses
