"""`task.agents.NAME`: prompts of one agent, and its overrides of group values."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import partial
from typing import Annotated, Any, TypeVar

from ippo_cli.config.constraints import NotEmpty, PositiveFloat, PositiveInt
from ippo_cli.config.marks import InEval
from ippo_cli.config.schema.actor import ActorConfig, AnyActorConfig
from ippo_cli.config.schema.algorithm import StepsConfig
from ippo_cli.config.schema.critic import AnyCriticConfig, SeparateCriticConfig
from ippo_cli.config.schema.reward import RewardWeightsConfig
from ippo_cli.config.schema.rollout import SamplingConfig
from ippo_cli.config.schema.tools import ToolFormat

T = TypeVar("T")


def build_unset(schema: type[T]) -> T:
    """Return an instance with every leaf missing (`???`), to be filled by one agent's overrides of a group."""
    instance = object.__new__(schema)
    for leaf in fields(schema):  # type: ignore[arg-type]
        object.__setattr__(instance, leaf.name, "???")
    return instance


@dataclass
class PromptConfig:
    """Prompts and reference answers of an agent."""

    template: InEval[str]  # the prompt; {field} is replaced by that field of the example
    turn_template: InEval[str | None] = None
    # prompt of later turns; null = new messages of others; in environments: template
    system: InEval[str | None] = None  # system message; needs a chat template
    chat_template_args: InEval[dict[str, Any]] = field(default_factory=dict)
    # arguments that its chat template reads, such as {enable_thinking: false}; {} = the template's defaults
    answer: InEval[str | None] = None  # template of the reference answer; exact_match, gsm8k and the warm start use it
    warm_start_answer: str | None = None  # template of the targets of actor=tiny's warm start; null = answer


@dataclass
class ToolsConfig(PromptConfig):
    """Prompts of an agent, and the tools that it may call in a turn before it answers."""

    tools: InEval[Annotated[Any, NotEmpty()]] = None
    # functions it may call: file.py | file.py:name | module:name | mcp:COMMAND | a list; null = none
    tool_format: InEval[ToolFormat] = ToolFormat.auto
    # how it writes calls: auto (as its chat template asks) | hermes | llama3 | mistral | json
    max_tool_calls: InEval[PositiveInt] = 4  # calls per turn of the protocol; then its next response is the answer
    tool_timeout_s: InEval[PositiveFloat] = 10.0  # seconds of a call
    tool_sandbox: InEval[bool] = False  # run tools in bubblewrap: one file, standard library only


@dataclass
class AgentPromptConfig(ToolsConfig):
    """Settings of an agent that belong to no group."""

    frozen: bool = False  # it generates with its initial weights and is scored, but never trained


@dataclass
class AgentConfig(AgentPromptConfig):
    """One named agent of a task: its prompts, and its overrides of group values."""

    actor: AnyActorConfig = field(default_factory=partial(build_unset, AnyActorConfig))  # overrides of `actor`
    critic: AnyCriticConfig = field(default_factory=partial(build_unset, AnyCriticConfig))  # overrides of `critic`
    rollout: SamplingConfig = field(default_factory=partial(build_unset, SamplingConfig))  # overrides of sampling
    algorithm: StepsConfig = field(default_factory=partial(build_unset, StepsConfig))  # overrides of optimizer steps
    reward: RewardWeightsConfig = field(default_factory=partial(build_unset, RewardWeightsConfig))  # overrides of score

    @property
    def critic_weights(self) -> ActorConfig | SeparateCriticConfig:
        """The group with the number format and recomputation of the critic: its own, or that of the actor's base."""
        return self.critic if self.critic.has_own_backbone else self.actor
