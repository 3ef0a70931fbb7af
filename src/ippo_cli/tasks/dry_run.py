"""An episode before there is any model: what agents are told, and what stands for their answers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ippo_cli.config.errors import IppoError
from ippo_cli.tasks.environment import Action, Environment, InvalidReturn
from ippo_cli.types import Example
from ippo_cli.user_code.errors import format_user_error

PLACEHOLDER = "(what {agent} says)"  # stands for an answer where nobody is asked


@runtime_checkable
class SupportsActions(Environment, Protocol):
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
    is_user_error: bool = False  # whether no answer can be the reason of the failure


def run_dry_episode(environment: Environment, example: Example, seed: int, max_turns: int) -> DryRun:
    """Play an episode for some turns, and close the environment; what it raises is noted."""
    rng, result = random.Random(f"dry run {seed}"), DryRun()
    has_placeholder = False  # whether something was answered that might be no answer
    try:
        with closing(environment):
            result.first = observations = environment.reset(example, seed)
            while observations and len(result.turns) < max_turns:
                legal_actions = environment.actions() if isinstance(environment, SupportsActions) else {}
                answers = {
                    name: rng.choice(legal_actions[name]) if legal_actions.get(name) else PLACEHOLDER.format(agent=name)
                    for name in observations
                }
                has_placeholder = has_placeholder or not all(legal_actions.get(name) for name in observations)
                result.turns += [(name, text, answers[name]) for name, text in observations.items()]
                step = environment.step({name: Action(text) for name, text in answers.items()})
                observations = step.observations
                if step.terminated or step.truncated:
                    result.end = "ended by itself" if step.terminated else "cut off by the environment's limit"
                    break
    except IppoError:
        raise
    except (Exception, SystemExit) as error:  # of the user's own code
        result.failure = format_user_error(error)
        result.is_user_error = not has_placeholder or isinstance(error, InvalidReturn)
    return result
