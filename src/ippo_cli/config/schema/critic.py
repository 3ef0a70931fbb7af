"""`critic=`: the value function."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from ippo_cli.config.constraints import LearningRate, Name, PositiveFloat, PositiveInt, Range
from ippo_cli.config.marks import Changeable, Frozen
from ippo_cli.config.schema.lora import LoraConfig
from ippo_cli.config.schema.optimizer import Dtype, OptimizerConfig
from ippo_cli.config.schema.registry import option


class CriticKind(str, Enum):
    separate = "separate"
    centralized = "centralized"
    value_head = "value_head"
    adapter = "adapter"
    none = "none"


@dataclass
class CriticConfig:
    """Keys of all value functions."""

    kind: Frozen[CriticKind]  # separate | centralized | value_head | adapter | none

    @property
    def shares_actor_loss(self) -> bool:
        """Whether a head on the actor gives its values, and both minimise one joint loss."""
        return False

    @property
    def has_own_optimizer(self) -> bool:
        """Whether it has its own optimizer steps."""
        return False

    @property
    def has_own_backbone(self) -> bool:
        """Whether its backbone is another model than the actor's."""
        return False

    @property
    def trains_adapter(self) -> bool:
        """Whether it is an adapter on the actor's frozen base."""
        return False

    @property
    def reads_team(self) -> bool:
        """Whether it reads the observations and responses of all agents."""
        return False

    @property
    def num_bins(self) -> int:
        """Outputs per token of a categorical value head; 0 if it gives one number."""
        return 0


@option("critic", "none")
@dataclass
class NoCriticConfig(CriticConfig):
    """No value function: for algorithms with a baseline computed from scores."""


@dataclass
class TrainedCriticConfig(CriticConfig):
    """A trained value function."""

    value_head_hidden_dim: PositiveInt | None  # width of a hidden layer in the value head; null = one linear map
    learning_rate: Changeable[LearningRate]
    # learning rate of the critic; with value_head, of the head's parameter group
    warm_start: Changeable[Name | None]
    # initial weights, head included: a run (each agent's own critic), a `critic/` folder, or a reward model (one label)
    popart_beta: Frozen[Annotated[float, Range(0.0, 1.0, open_low=True)] | None]
    # PopArt: running moments normalise returns; weight of a buffer over the next one's; null = off
    value_bins: Frozen[Annotated[int, Range(2)] | None]
    # HL-Gauss: the head gives a distribution over this many bins, trained by cross-entropy; null = one number
    value_min: Frozen[float | None]  # start of the bins, of normalised values with popart_beta: null = -5 there
    value_max: Frozen[float | None]  # end of the bins: null = 5 with popart_beta
    bin_sigma: Frozen[PositiveFloat | None]  # standard deviation of a target in bin widths; null = 0.75

    @property
    def num_bins(self) -> int:
        return self.value_bins or 0


@option("critic", "value_head")
@dataclass
class ValueHeadCriticConfig(TrainedCriticConfig):
    """A value head on the actor's last hidden state; actor and head minimise one joint loss."""

    @property
    def shares_actor_loss(self) -> bool:
        return True


@dataclass
class OptimizedCriticConfig(TrainedCriticConfig, OptimizerConfig):
    """A critic with a separate optimizer and separate steps."""

    mini_batch_size: Changeable[PositiveInt | None]
    # sequences per step, all ranks; null = the algorithm's, else 1/8 of the buffer
    ppo_epochs: Changeable[PositiveInt | None]  # passes over the buffer; null = algorithm.ppo_epochs

    @property
    def has_own_optimizer(self) -> bool:
        return True


@option("critic", "separate")
@dataclass
class SeparateCriticConfig(OptimizedCriticConfig):
    """A separate model: a backbone without a language-model head, and a value head."""

    model: Frozen[Name | None]  # folder or hub id of the backbone; null = the actor's initial weights
    revision: str | None  # commit, branch or tag of a hub model
    ensemble: Frozen[PositiveInt]  # number of critics, each trained on other prompts; values are their mean
    mask_agreement: Annotated[float, Range(0.0, 1.0, open_low=True, open_high=True)] | None
    # fraction of tokens with an advantage of 0: those on which an ensemble agrees most
    mask_entropy: Annotated[float, Range(0.0, 1.0, open_low=True, open_high=True)] | None
    # fraction of tokens without entropy bonus: those on which it agrees least
    dtype: Frozen[Dtype]  # fp32 | bf16
    gradient_checkpointing: Changeable[bool]  # recompute activations in the backward pass
    freeze: Frozen[list[str]]  # parameters that keep their initial values, by patterns of names such as *attn*

    @property
    def has_own_backbone(self) -> bool:
        return True


@option("critic", "centralized")
@dataclass
class CentralizedCriticConfig(SeparateCriticConfig):
    """A separate model that reads the observations and responses of all agents."""

    shared: Frozen[bool]  # one critic for all agents; false = one per agent, or per group of team.groups
    context_limit: Frozen[PositiveInt | None]  # tokens per sequence of the critic; null = the model's context length

    @property
    def reads_team(self) -> bool:
        return True


@option("critic", "adapter")
@dataclass
class AdapterCriticConfig(LoraConfig, OptimizedCriticConfig):
    """A separate LoRA adapter on the actor's frozen base, and a value head."""

    @property
    def trains_adapter(self) -> bool:
        return True


@dataclass
class AnyCriticConfig(LoraConfig, CentralizedCriticConfig):
    """All keys of critics with a separate optimizer: an agent may override any of them."""
