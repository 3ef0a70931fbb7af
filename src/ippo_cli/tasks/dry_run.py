"""An episode before there is any model: what agents are told, and what stands for their answers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ippo_cli.config.errors import IppoError
from ippo_cli.tasks.environment import Action, Environment, WrongReturn
from ippo_cli.types import Example
from ippo_cli.user_code.errors import located

PLACEHOLDER = "(what {agent} says)"  # stands for an answer where nobody is asked


@runtime_checkable
class Playable(Environment, Protocol):
    """An environment that knows what can be answered."""

    def actions(self) -> Mapping[str, Sequence[str]]:
        """Legal answers of those who act next; an agent is left out where nobody knows."""
        ...


@dataclass(slots=True, kw_only=True)
class DryRun:
    """How far an episode got. Legal answers, drawn at random, stand for those of agents; or else placeholders."""

    turns: list[tuple[str, str, str]] = field(
        default_factory=list
    )  # agent, what it was told, what stands for its answer
    first: Mapping[str, str] = field(default_factory=dict)  # what agents are told before anybody answers
    end: str = ""  # how it ended, where it has
    failure: str = ""  # what was raised, with the line of the user's code
    to_be_mended: bool = False  # whether no answer can be the reason of the failure


def dry_episode(environment: Environment, example: Example, seed: int, most_turns: int) -> DryRun:
    """Play an episode for some turns, and close the environment; what it raises is noted."""
    luck, shown = random.Random(f"dry run {seed}"), DryRun()
    invented = False  # whether something was answered that might be no answer
    try:
        with closing(environment):
            shown.first = told = environment.reset(example, seed)
            while told and len(shown.turns) < most_turns:
                offered = environment.actions() if isinstance(environment, Playable) else {}
                answers = {
                    name: luck.choice(offered[name]) if offered.get(name) else PLACEHOLDER.format(agent=name)
                    for name in told
                }
                invented = invented or not all(offered.get(name) for name in told)
                shown.turns += [(name, text, answers[name]) for name, text in told.items()]
                step = environment.step({name: Action(text) for name, text in answers.items()})
                told = step.observations
                if step.terminated or step.truncated:
                    shown.end = "ended by itself" if step.terminated else "cut off by the environment's limit"
                    break
    except IppoError:
        raise
    except (Exception, SystemExit) as error:  # of the user's own code
        shown.failure = located(error)
        shown.to_be_mended = not invented or isinstance(error, WrongReturn)
    return shown
