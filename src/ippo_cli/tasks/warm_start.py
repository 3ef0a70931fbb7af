"""Lessons: what a model made locally is shown before training, by playing episodes with answers that are given.

Where an agent's reference answer is known, that is what it says; in a world that knows what may be answered, it answers
at random, which shows the form of answers and favours none.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from ippo_cli.config.errors import IppoError
from ippo_cli.config.schema import PromptConfig
from ippo_cli.tasks.dry_run import SupportsActions
from ippo_cli.tasks.environment import Action, Environment
from ippo_cli.tasks.templates import render_template
from ippo_cli.types import Example, Lesson

MAX_EPISODE_STEPS = 64  # steps of an episode, which may have no limit of its own; more than a lesson has room for
MAX_STEPS = 1 << 16  # of all episodes: those that go on for ever show the same with fewer examples


def play_lessons(
    environment: Environment, agents: Mapping[str, PromptConfig], examples: Iterable[Example], seed: int
) -> dict[str, list[Lesson]]:
    """Lessons of all agents, from an episode with each of the examples, or with as many as take `MOST_STEPS` steps.

    An agent whose answers are not known says nothing, and has no lessons.
    """
    rng = random.Random(f"warm start {seed}")
    lessons: dict[str, list[Lesson]] = {name: [] for name in agents}
    steps = 0
    for example in examples:
        if steps >= MAX_STEPS:
            break
        try:
            turns_by_agent = _play_episode(environment, agents, example, rng)
        except IppoError:
            raise
        except (Exception, SystemExit):  # whatever an environment raises costs its episode alone, here as in training
            continue
        steps += max(map(len, turns_by_agent.values()), default=0)
        for name, turns in turns_by_agent.items():
            lessons[name].append(turns)
    return lessons


def _play_episode(
    environment: Environment, agents: Mapping[str, PromptConfig], example: Example, rng: random.Random
) -> dict[str, list[tuple[str, str]]]:
    """What each agent was told and what it should answer, in one episode."""
    turns: dict[str, list[tuple[str, str]]] = {}
    observations = environment.reset(example, rng.getrandbits(31))
    for _ in range(MAX_EPISODE_STEPS):
        legal = environment.actions() if isinstance(environment, SupportsActions) else {}
        answers = {name: _choose_answer(name, agents[name], example, legal.get(name, ()), rng) for name in observations}
        if all(answer is None for answer in answers.values()):
            break
        for name, answer in answers.items():
            if answer is not None:
                turns.setdefault(name, []).append((observations[name], answer))
        step = environment.step({name: Action(text=answer or "") for name, answer in answers.items()})
        if step.terminated or step.truncated:
            break
        observations = step.observations
    return turns


def take_examples(examples: Sequence[Example], count: int) -> Iterable[Example]:
    """Without reading the rest."""
    return (examples[row] for row in islice(range(len(examples)), count))


def warm_start_template(agent: PromptConfig) -> str | None:
    """The template of what the warm start teaches an agent to answer."""
    return agent.answer if agent.warm_start_answer is None else agent.warm_start_answer


def _choose_answer(
    name: str, agent: PromptConfig, example: Example, legal: Sequence[str], rng: random.Random
) -> str | None:
    template = warm_start_template(agent)
    if template is not None:
        return render_template(template, example, f"task.agents.{name}.answer")
    return rng.choice(legal) if legal else None
