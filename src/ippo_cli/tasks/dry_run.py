"""Dry runs: play an episode without a model, with legal actions or placeholders as answers."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ippo_cli.config.errors import raise_interruption
from ippo_cli.tasks.environment import Action, Environment, InvalidReturn, closing_environment
from ippo_cli.tasks.observations import check_observations, check_step
from ippo_cli.types import Example
from ippo_cli.user_code.errors import format_user_error

MAX_CHARACTERS = 1 << 20  # of an observation that a dry run shows
PLACEHOLDER = "(answer of {agent})"  # the answer of an agent without known legal actions


@runtime_checkable
class SupportsActions(Environment, Protocol):
    """An environment that lists legal actions."""

    def actions(self) -> Mapping[str, Sequence[str]]:
        """Legal answers of the agents that act next; agents without known legal answers are excluded."""
        ...


@runtime_checkable
class SupportsChance(Environment, Protocol):
    """An environment that lists the outcomes of chance."""

    def chance_outcomes(self) -> Mapping[int, float]:
        """Seeds that stand for all outcomes of chance, with their probabilities; empty if they are not known."""
        ...


@dataclass(slots=True, kw_only=True)
class DryRun:
    """Result of a dry run. The agents' answers are random legal actions, or placeholders if none are known."""

    turns: list[tuple[str, str, str]] = field(default_factory=list)  # agent, observation, answer
    first_observations: Mapping[str, str] = field(default_factory=dict)  # observations before the first answer
    outcome: str = ""  # how it ended; empty if it did not
    failure: str = ""  # the error, with the line of the user's code
    is_user_error: bool = False  # whether the user's code is at fault, not a placeholder answer


def run_dry_episode(environment: Environment, example: Example, seed: int, max_turns: int) -> DryRun:
    """Play up to `max_turns` turns and close the environment; errors are recorded, except `IppoError`."""
    rng, result = random.Random(f"dry run {seed}"), DryRun()
    has_placeholder = False  # a placeholder may be an invalid answer
    try:
        with closing_environment(environment):
            observations = environment.reset(example, seed)
            check_observations(observations)
            result.first_observations = observations
            while observations and len(result.turns) < max_turns:
                legal_actions = environment.actions() if isinstance(environment, SupportsActions) else {}
                answers = {
                    name: rng.choice(legal_actions[name]) if legal_actions.get(name) else PLACEHOLDER.format(agent=name)
                    for name in observations
                }
                has_placeholder = has_placeholder or not all(legal_actions.get(name) for name in observations)
                result.turns += [(name, text[:MAX_CHARACTERS], answers[name]) for name, text in observations.items()]
                step = environment.step({name: Action(text) for name, text in answers.items()})
                check_step(step)
                observations = step.observations
                if step.terminated or step.truncated:
                    result.outcome = "terminated" if step.terminated else "truncated by the environment"
                    break
    except BaseException as error:  # raised by user code
        raise_interruption(error)
        result.failure = format_user_error(error)
        result.is_user_error = not has_placeholder or isinstance(error, InvalidReturn)
    return result
