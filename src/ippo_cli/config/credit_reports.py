"""Settings and rules of `ippo-eval credit=true`, which compares kinds of credit with reference credit of turns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ippo_cli.config.critic_reports import DEFAULT_EXACT_EPISODES, ValueReference, check_enumerable
from ippo_cli.config.errors import ConfigError, combine_errors
from ippo_cli.config.rewards import needs_whole_batch
from ippo_cli.config.schema import Config, MixRewardConfig, ProgramConfig

KEY = "credit=true"
MINIMA = {"credit_prompts": 2, "credit_responses": 1, "credit_continuations": 2, "credit_alternatives": 1}
SETTING_KEYS = ("credit_reference", *MINIMA)


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
    reference = own.get("credit_reference", ValueReference.monte_carlo.value)
    kinds = [kind.value for kind in ValueReference]
    if reference not in kinds:
        raise ConfigError(f"credit_reference={reference}", "is unknown", f"use {' or '.join(kinds)}")
    numbers: dict[str, int] = {}
    for key, least in MINIMA.items():
        if (text := own.get(key)) is None:
            continue
        if not text.isdecimal() or int(text) < least:
            raise ConfigError(f"{key}={text}", f"is not an integer of at least {least}", f"use {key}={max(least, 4)}")
        numbers[key.removeprefix("credit_")] = int(text)
    if reference == ValueReference.exact.value:
        numbers.setdefault("continuations", DEFAULT_EXACT_EPISODES)
    return CreditReportSettings(reference=ValueReference(reference), **numbers)


def check_credit_report(config: Config, settings: CreditReportSettings) -> None:
    """Raise `ConfigError` with every reason why the credit of this run cannot be compared."""
    if errors := [*_check_scores(config), *_check_exact(config, settings)]:
        raise combine_errors(errors)


def _check_scores(config: Config) -> Iterator[ConfigError]:
    reward = config.reward
    if needs_whole_batch(reward) or (isinstance(reward, MixRewardConfig) and reward.normalize):
        key = "normalize" if isinstance(reward, MixRewardConfig) and reward.normalize else "whole_batch"
        yield ConfigError(
            KEY,
            f"scores additional episodes, and reward.{key}=true compares the responses of a buffer with each other",
            "evaluate a run without it",
        )


def _check_exact(config: Config, settings: CreditReportSettings) -> Iterator[ConfigError]:
    """Probabilities of responses must be computable, and an episode must be a function of actions."""
    if settings.reference is not ValueReference.exact:
        return
    key, task = "credit_reference=exact", config.task
    remedy = "use credit_reference=monte_carlo"
    if isinstance(task, ProgramConfig) or any(agent.tools is not None for agent in task.agents.values()):
        yield ConfigError(key, "does not support programs and tools", remedy)
    yield from check_enumerable(config, key, remedy)
