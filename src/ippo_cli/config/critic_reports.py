"""Settings and rules of `ippo-eval critic=true` and `credit=true`: comparisons with reference values and credit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from ippo_cli.config.errors import ConfigError, combine_errors
from ippo_cli.config.rewards import buffer_dependent_scores, needs_whole_batch
from ippo_cli.config.schema import (
    Config,
    ConversationConfig,
    Credit,
    CriticKind,
    MixRewardConfig,
    ProgramConfig,
    ServerActorConfig,
    TurnValue,
)

KEY = "critic=true"


class ValueReference(str, Enum):
    monte_carlo = "monte_carlo"
    exact = "exact"


@dataclass(frozen=True, kw_only=True)
class CriticReportSettings:
    """What a report compares, and its cost."""

    reference: ValueReference = ValueReference.monte_carlo
    states: int = 256  # of each agent, at most
    responses: int = 4  # sampled per prompt: states of different responses to a prompt are compared
    continuations: int = 16  # of each state; with exact references, episodes of each state at most


DEFAULT_EXACT_EPISODES = 4096
"""Episodes that an exact reference enumerates, if `critic_continuations` is not set."""
SETTING_KEYS = ("critic_reference", "critic_states", "critic_responses", "critic_continuations")
MINIMA = {"critic_states": 2, "critic_responses": 1, "critic_continuations": 2}


def parse_report_settings(own: Mapping[str, str]) -> CriticReportSettings:
    """The settings of the command's keys. Raises `ConfigError`."""
    reference, numbers = _parse_settings(own, "critic_", MINIMA, suggested=16)
    return CriticReportSettings(reference=reference, **numbers)


def _parse_settings(
    own: Mapping[str, str], prefix: str, minima: Mapping[str, int], suggested: int
) -> tuple[ValueReference, dict[str, int]]:
    """The reference and the numbers of a report with keys that begin with `prefix`. Raises `ConfigError`."""
    reference = own.get(f"{prefix}reference", ValueReference.monte_carlo.value)
    kinds = [kind.value for kind in ValueReference]
    if reference not in kinds:
        raise ConfigError(f"{prefix}reference={reference}", "is unknown", f"use {' or '.join(kinds)}")
    numbers: dict[str, int] = {}
    for key, least in minima.items():
        if (text := own.get(key)) is None:
            continue
        if not text.isdecimal() or int(text) < least:
            remedy = f"use {key}={max(least, suggested)}"
            raise ConfigError(f"{key}={text}", f"is not an integer of at least {least}", remedy)
        numbers[key.removeprefix(prefix)] = int(text)
    if reference == ValueReference.exact.value:
        numbers.setdefault("continuations", DEFAULT_EXACT_EPISODES)
    return ValueReference(reference), numbers


def agents_with_values(config: Config) -> list[str]:
    """The trained agents with a critic."""
    agents = config.task.agents.items()
    return [name for name, agent in agents if not agent.frozen and agent.critic.kind is not CriticKind.none]


def check_critic_report(config: Config, settings: CriticReportSettings) -> None:
    """Raise `ConfigError` with every reason why the values of this run cannot be compared."""
    if errors := [*_check_values(config), *_check_scores(config), *_check_exact(config, settings)]:
        raise combine_errors(errors)


def _check_values(config: Config) -> Iterator[ConfigError]:
    algorithm = config.algorithm
    if not agents_with_values(config):
        yield ConfigError(
            KEY, f"compares values of a critic, and no agent has one (critic={config.critic.kind.value})", "remove it"
        )
    pooled = algorithm.turn_value not in (None, TurnValue.first) and algorithm.credit is not Credit.token
    if pooled and algorithm.turn_value is not None:
        yield ConfigError(
            KEY,
            f"compares values of states before a turn, and with algorithm.turn_value={algorithm.turn_value.value} the "
            "value of a turn depends on its tokens",
            "evaluate a run with algorithm.turn_value=first",
        )


def _check_scores(config: Config) -> Iterator[ConfigError]:
    """Scores of continuations must equal the scores that the critic learned from."""
    for setting, reason, remedy in buffer_dependent_scores(config.reward):
        yield ConfigError(KEY, f"scores continuations, and {setting} {reason}", f"evaluate a run with {remedy}")


def _check_exact(config: Config, settings: CriticReportSettings) -> Iterator[ConfigError]:
    """Responses of one step can be enumerated; later steps depend on an environment."""
    if settings.reference is not ValueReference.exact:
        return
    key, task = "critic_reference=exact", config.task
    is_one_step = False
    if isinstance(task, ConversationConfig):
        is_one_step = task.num_turns == 1 and (task.protocol == "parallel" or len(task.agents) == 1)
    if not is_one_step or any(agent.tools is not None for agent in task.agents.values()):
        yield ConfigError(
            key,
            "enumerates the responses of one step, and an episode of this task may have several",
            "use critic_reference=monte_carlo",
        )
    yield from check_enumerable(config, key, "use critic_reference=monte_carlo")


def check_enumerable(config: Config, key: str, remedy: str) -> Iterator[ConfigError]:
    """Why the responses of an agent cannot be enumerated."""
    for name, agent in config.task.agents.items():
        sampling = agent.rollout
        if sampling.stop_strings or sampling.repetition_penalty != 1.0:
            yield ConfigError(
                key,
                f"does not support rollout.stop_strings and rollout.repetition_penalty, which {name} uses",
                remedy,
            )
        if isinstance(agent.actor, ServerActorConfig):
            yield ConfigError(
                key,
                f"computes probabilities of all responses, and the model of {name} is at a server",
                remedy,
            )


CREDIT_KEY = "credit=true"
CREDIT_MINIMA = {"credit_prompts": 2, "credit_responses": 1, "credit_continuations": 2, "credit_alternatives": 1}
CREDIT_SETTING_KEYS = ("credit_reference", *CREDIT_MINIMA)


@dataclass(frozen=True, kw_only=True)
class CreditReportSettings:
    """What a report compares, and its cost."""

    reference: ValueReference = ValueReference.monte_carlo
    prompts: int = 16  # held-out rows
    responses: int = 4  # episodes of each row: the other answers of the one-turn counterfactual
    continuations: int = 16  # from before and after each turn; with exact references, episodes of each turn at most
    alternatives: int = 2  # to each turn, of the counterfactual credit by turn


def parse_credit_settings(own: Mapping[str, str]) -> CreditReportSettings:
    """The settings of the command's keys. Raises `ConfigError`."""
    reference, numbers = _parse_settings(own, "credit_", CREDIT_MINIMA, suggested=4)
    return CreditReportSettings(reference=reference, **numbers)


def check_credit_report(config: Config, settings: CreditReportSettings) -> None:
    """Raise `ConfigError` with every reason why the credit of this run cannot be compared."""
    if errors := [*_check_credit_scores(config), *_check_credit_exact(config, settings)]:
        raise combine_errors(errors)


def _check_credit_scores(config: Config) -> Iterator[ConfigError]:
    reward = config.reward
    if needs_whole_batch(reward) or (isinstance(reward, MixRewardConfig) and reward.normalize):
        key = "normalize" if isinstance(reward, MixRewardConfig) and reward.normalize else "whole_batch"
        yield ConfigError(
            CREDIT_KEY,
            f"scores additional episodes, and reward.{key}=true compares the responses of a buffer with each other",
            "evaluate a run without it",
        )


def _check_credit_exact(config: Config, settings: CreditReportSettings) -> Iterator[ConfigError]:
    """Probabilities of responses must be computable, and an episode must be a function of actions."""
    if settings.reference is not ValueReference.exact:
        return
    key, task = "credit_reference=exact", config.task
    remedy = "use credit_reference=monte_carlo"
    if isinstance(task, ProgramConfig) or any(agent.tools is not None for agent in task.agents.values()):
        yield ConfigError(key, "does not support programs and tools", remedy)
    yield from check_enumerable(config, key, remedy)
