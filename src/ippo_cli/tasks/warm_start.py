"""Create warm-start lessons for locally created models, by playing episodes with known answers.

An agent gives its reference answer if it has one. Otherwise, if the environment lists legal actions, it gives a random
one, which teaches the format of answers without a preference.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from ippo_cli.config.errors import raise_interruption
from ippo_cli.config.schema import PromptConfig
from ippo_cli.tasks.dry_run import SupportsActions
from ippo_cli.tasks.environment import Action, Environment
from ippo_cli.tasks.observations import check_observations, check_step
from ippo_cli.tasks.templates import render_template
from ippo_cli.types import Example, Lesson

MAX_EPISODE_STEPS = 64  # per episode, which may be unlimited; exceeds what a lesson can hold
MAX_CHARACTERS = 1 << 16  # of an observation; far more than a local model reads
MAX_STEPS = 1 << 16  # over all episodes, so that endless episodes use fewer examples


def play_lessons(
    environment: Environment, agents: Mapping[str, PromptConfig], examples: Iterable[Example], seed: int
) -> dict[str, list[Lesson]]:
    """Return the lessons of all agents, from one episode per example until `MAX_STEPS` steps are reached.

    An agent without known answers answers with empty text and has no lessons.
    """
    rng = random.Random(f"warm start {seed}")
    lessons: dict[str, list[Lesson]] = {name: [] for name in agents}
    steps = 0
    for example in examples:
        if steps >= MAX_STEPS:
            break
        try:
            turns_by_agent = _play_episode(environment, agents, example, rng)
        except BaseException as error:  # an exception fails only its episode, as in training
            raise_interruption(error)
            continue
        steps += max(map(len, turns_by_agent.values()), default=0)
        for name, turns in turns_by_agent.items():
            lessons[name].append(turns)
    return lessons


def _play_episode(
    environment: Environment, agents: Mapping[str, PromptConfig], example: Example, rng: random.Random
) -> dict[str, list[tuple[str, str]]]:
    """Play one episode; returns (observation, answer) pairs by agent."""
    turns: dict[str, list[tuple[str, str]]] = {}
    observations = environment.reset(example, rng.getrandbits(31))
    check_observations(observations)
    for _ in range(MAX_EPISODE_STEPS):
        if any(len(text) > MAX_CHARACTERS for text in observations.values()):
            break
        legal = environment.actions() if isinstance(environment, SupportsActions) else {}
        answers = {name: choose_answer(name, agents[name], example, legal.get(name, ()), rng) for name in observations}
        if all(answer is None for answer in answers.values()):
            break
        for name, answer in answers.items():
            if answer is not None:
                turns.setdefault(name, []).append((observations[name], answer))
        step = environment.step({name: Action(text=answer or "") for name, answer in answers.items()})
        check_step(step)
        if step.terminated or step.truncated:
            break
        observations = step.observations
    return turns


def take_examples(examples: Sequence[Example], count: int) -> Iterable[Example]:
    """Return the first `count` examples without reading the rest."""
    return (examples[row] for row in islice(range(len(examples)), count))


def warm_start_template(agent: PromptConfig) -> str | None:
    """Return the template of an agent's warm-start answer, or None."""
    return agent.answer if agent.warm_start_answer is None else agent.warm_start_answer


def choose_answer(
    name: str, agent: PromptConfig, example: Example, legal: Sequence[str], rng: random.Random
) -> str | None:
    """Return an agent's warm-start answer, or a random legal action; None if neither is known."""
    template = warm_start_template(agent)
    if template is not None:
        return render_template(template, example, f"task.agents.{name}.answer")
    return rng.choice(legal) if legal else None
