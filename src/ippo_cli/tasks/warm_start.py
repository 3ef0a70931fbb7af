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
from ippo_cli.tasks.dry_run import Playable
from ippo_cli.tasks.environment import Action, Environment
from ippo_cli.tasks.templates import render_template
from ippo_cli.types import Example, Lesson

LONGEST = 64  # steps of an episode, which may have no limit of its own; more than a lesson has room for
MOST_STEPS = 1 << 16  # of all episodes: those that go on for ever show the same with fewer examples


def played_lessons(
    environment: Environment, agents: Mapping[str, PromptConfig], examples: Iterable[Example], seed: int
) -> dict[str, list[Lesson]]:
    """Lessons of all agents, from an episode with each of the examples, or with as many as take `MOST_STEPS` steps.

    An agent whose answers are not known says nothing, and has no lessons.
    """
    luck = random.Random(f"warm start {seed}")
    lessons: dict[str, list[Lesson]] = {name: [] for name in agents}
    steps = 0
    for example in examples:
        if steps >= MOST_STEPS:
            break
        try:
            taken = _played(environment, agents, example, luck)
        except IppoError:
            raise
        except (Exception, SystemExit):  # whatever an environment raises costs its episode alone, here as in training
            continue
        steps += max(map(len, taken.values()), default=0)
        for name, turns in taken.items():
            lessons[name].append(turns)
    return lessons


def _played(
    environment: Environment, agents: Mapping[str, PromptConfig], example: Example, luck: random.Random
) -> dict[str, list[tuple[str, str]]]:
    """What each agent was told and what it should answer, in one episode."""
    turns: dict[str, list[tuple[str, str]]] = {}
    told = environment.reset(example, luck.getrandbits(31))
    for _ in range(LONGEST):
        legal = environment.actions() if isinstance(environment, Playable) else {}
        said = {name: _answer(name, agents[name], example, legal.get(name, ()), luck) for name in told}
        if all(answer is None for answer in said.values()):
            break
        for name, answer in said.items():
            if answer is not None:
                turns.setdefault(name, []).append((told[name], answer))
        step = environment.step({name: Action(text=answer or "") for name, answer in said.items()})
        if step.terminated or step.truncated:
            break
        told = step.observations
    return turns


def first_examples(examples: Sequence[Example], count: int) -> Iterable[Example]:
    """Without reading the rest."""
    return (examples[row] for row in islice(range(len(examples)), count))


def taught_answer(agent: PromptConfig) -> str | None:
    """The template of what the warm start teaches an agent to answer."""
    return agent.answer if agent.warm_start_answer is None else agent.warm_start_answer


def _answer(name: str, agent: PromptConfig, example: Example, legal: Sequence[str], luck: random.Random) -> str | None:
    template = taught_answer(agent)
    if template is not None:
        return render_template(template, example, f"task.agents.{name}.answer")
    return luck.choice(legal) if legal else None
