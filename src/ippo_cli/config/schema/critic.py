"""`critic=`: the value function."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from ippo_cli.config.constraints import LearningRate, Name, PositiveInt
from ippo_cli.config.schema.lora import LoraConfig
from ippo_cli.config.schema.optimizer import Dtype, OptimizerConfig


class CriticKind(str, Enum):
    separate = "separate"
    centralized = "centralized"
    value_head = "value_head"
    adapter = "adapter"
    none = "none"


@dataclass
class CriticConfig:
    """The value function, common to all kinds."""

    kind: CriticKind  # separate | centralized | value_head | adapter | none


@dataclass
class NoCriticConfig(CriticConfig):
    """No value function: for algorithms whose baseline comes from scores alone."""


@dataclass
class TrainedCriticConfig(CriticConfig):
    """A value function that is learnt."""

    value_head_hidden_dim: PositiveInt | None  # width of a hidden layer in the value head; null = one linear map
    learning_rate: LearningRate  # of the critic's own optimizer; value_head: of the head's parameter group


@dataclass
class ValueHeadCriticConfig(TrainedCriticConfig):
    """A head on the actor's last hidden state, trained with the actor by one joint loss."""


@dataclass
class OptimizedCriticConfig(TrainedCriticConfig, OptimizerConfig):
    """A critic with an optimizer and steps of its own."""

    warm_start: Name | None  # a run's `critic/` folder or a reward model (one label) to start from, with its head
    mini_batch_size: PositiveInt | None  # sequences per step, global; null = the algorithm's, or a buffer's eighth
    ppo_epochs: PositiveInt | None  # passes over the buffer; null = algorithm.ppo_epochs


@dataclass
class SeparateCriticConfig(OptimizedCriticConfig):
    """A model of its own: a backbone without a language-model head, and a value head."""

    model: Name | None  # folder or hub id of the backbone; null = start from the same weights as the actor
    revision: str | None  # commit, branch or tag of a hub model
    dtype: Dtype  # fp32 | bf16
    gradient_checkpointing: bool  # recompute activations in the backward pass


@dataclass
class CentralizedCriticConfig(SeparateCriticConfig):
    """A model of its own that reads what every agent was told and wrote."""

    shared: bool  # one critic for all agents; false = one for each agent, or group of team.groups
    context_limit: PositiveInt | None  # tokens that it reads as one sequence; null = what its model was made for


@dataclass
class AdapterCriticConfig(LoraConfig, OptimizedCriticConfig):
    """A LoRA adapter of its own on the actor's frozen base, and a value head."""


@dataclass
class AnyCriticConfig(LoraConfig, CentralizedCriticConfig):
    """Every key that some critic with an optimizer of its own has: one agent's values may be any of them."""
