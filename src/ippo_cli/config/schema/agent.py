"""`task.agents.NAME`: how one agent is asked, and what is its own among the groups' values."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import partial
from typing import TypeVar

from ippo_cli.config.schema.actor import TinyLoraActorConfig
from ippo_cli.config.schema.algorithm import StepsConfig
from ippo_cli.config.schema.critic import AnyCriticConfig
from ippo_cli.config.schema.reward import RewardWeightsConfig
from ippo_cli.config.schema.rollout import SamplingConfig

T = TypeVar("T")


def build_unset(schema: type[T]) -> T:
    """An instance whose every leaf is missing (`???`): the place where one agent's overrides of a group may go."""
    instance = object.__new__(schema)
    for leaf in fields(schema):  # type: ignore[arg-type]
        object.__setattr__(instance, leaf.name, "???")
    return instance


@dataclass
class PromptConfig:
    """How an agent is asked."""

    template: str  # the prompt; {field} is replaced by that field of the example
    turn_template: str | None = None  # what it is told later; null = what others said since, in worlds template again
    system: str | None = None  # system message; needs a chat template
    answer: str | None = None  # the reference answer as a template; exact_match, gsm8k and the warm start use it
    warm_start_answer: str | None = None  # what actor=tiny's warm start teaches, as a template; null = answer


@dataclass
class AgentPromptConfig(PromptConfig):
    """What an agent has beside its models."""

    frozen: bool = False  # it speaks with its initial weights, is scored, and never learns


@dataclass
class AgentConfig(AgentPromptConfig):
    """One named agent of a task: how it is asked, and what is its own among the groups' values."""

    actor: TinyLoraActorConfig = field(
        default_factory=partial(build_unset, TinyLoraActorConfig)
    )  # its values of `actor`
    critic: AnyCriticConfig = field(default_factory=partial(build_unset, AnyCriticConfig))  # and of `critic`
    rollout: SamplingConfig = field(default_factory=partial(build_unset, SamplingConfig))  # and of how it is sampled
    algorithm: StepsConfig = field(default_factory=partial(build_unset, StepsConfig))  # and of its actor's steps
    reward: RewardWeightsConfig = field(default_factory=partial(build_unset, RewardWeightsConfig))  # and of its score
