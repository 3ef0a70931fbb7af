"""`actor=`: the policy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

from ippo_cli.config.constraints import Name, NonNegativeInt, PositiveInt, PositiveLearningRate, Range
from ippo_cli.config.marks import AgentInModelEval, Changeable, EvalCompute, Frozen, InEval, InModelEval
from ippo_cli.config.schema.lora import LoraConfig
from ippo_cli.config.schema.optimizer import Dtype, OptimizerConfig
from ippo_cli.config.schema.registry import option
from ippo_cli.config.schema.server import ServerConnectionConfig


class ActorKind(str, Enum):
    tiny = "tiny"
    full = "full"
    lora = "lora"
    tiny_lora = "tiny_lora"
    server = "server"


class ReferenceKind(str, Enum):
    initial = "initial"
    base = "base"


class Alphabet(str, Enum):
    auto = "auto"
    printable = "printable"


@dataclass
class PolicyConfig:
    """Keys of all policies: the model and its tokenizer."""

    kind: AgentInModelEval[Frozen[ActorKind]]
    # tiny (created locally) | full (loaded from actor.model) | lora, tiny_lora (adapters on either) | server (one
    # frozen agent's, at an inference server)
    model: AgentInModelEval[Frozen[Name | None]]
    # folder or hub id of a causal language model in safetensors format; with actor=server only its tokenizer is loaded
    revision: InModelEval[str | None]  # commit, branch or tag of a hub model
    tokenizer: InModelEval[Name | None]  # folder or hub id of another tokenizer for the model; null = the model's own
    tokenizer_revision: InModelEval[str | None]  # commit, branch or tag of a tokenizer on a hub
    chat_template: InModelEval[Frozen[Name | None]]
    # file with a chat template in Jinja, in place of the tokenizer's; null = the tokenizer's own

    @property
    def is_served(self) -> bool:
        """Whether a server samples for it, and no weights are loaded."""
        return False

    @property
    def is_created_here(self) -> bool:
        """Whether model and tokenizer are created by the run, not loaded."""
        return False

    @property
    def trains_adapter(self) -> bool:
        """Whether an adapter is trained on a frozen base."""
        return False

    @property
    def first_adapter(self) -> str | None:
        """The folder of the adapter that training starts from; None for a new one, and without adapters."""
        return None


@option("actor", "full")
@dataclass
class ActorConfig(OptimizerConfig, PolicyConfig):
    """The policy: a causal language model."""

    model_args: InModelEval[Frozen[dict[str, Any]]]
    # arguments of from_pretrained: {attn_implementation: eager}, {load_in_4bit: true}, ...
    dtype: EvalCompute[Frozen[Dtype]]  # fp32 | bf16 (the optimizer keeps fp32 master weights)
    gradient_checkpointing: Changeable[bool]  # recompute activations in the backward pass: less memory, more time
    reference: Frozen[Name]
    # of KL terms: initial (weights) | base (of the adapter) | a folder, a hub id, or a run (its agent of this name)
    reference_update_every: Frozen[PositiveInt | None]
    # iterations between copies of the actor to the reference; null = never


@option("actor", "tiny")
@dataclass
class TinyActorConfig(ActorConfig):
    """A small transformer with a character tokenizer, created and warm-started locally."""

    alphabet: Alphabet  # auto (characters of prompts and answers) | printable (bytes: encodes any text)
    hidden_size: PositiveInt  # width of the transformer
    num_layers: PositiveInt  # transformer layers
    num_heads: PositiveInt  # attention heads; must divide hidden_size
    warm_start_steps: NonNegativeInt  # supervised steps on reference answers or random actions before training
    warm_start_batch_size: PositiveInt  # examples per supervised step
    warm_start_learning_rate: PositiveLearningRate  # learning rate of the supervised steps

    @property
    def is_created_here(self) -> bool:
        return True


@option("actor", "lora")
@dataclass
class LoraActorConfig(LoraConfig, ActorConfig):
    """A LoRA adapter on a frozen causal language model."""

    adapter: Name | None  # folder of an adapter to start from (PEFT format); null = a new adapter with B A = 0

    @property
    def trains_adapter(self) -> bool:
        return True

    @property
    def first_adapter(self) -> str | None:
        return self.adapter


@option("actor", "tiny_lora")
@dataclass
class TinyLoraActorConfig(LoraActorConfig, TinyActorConfig):
    """A LoRA adapter on a small transformer that is created and warm-started locally, then frozen."""


@option("actor", "server")
@dataclass
class ServerActorConfig(ServerConnectionConfig, PolicyConfig):
    """A frozen agent's policy at a server that takes and returns token ids; no weights are loaded for it."""

    url: EvalCompute[Changeable[Name | None]]  # address such as http://HOST:8000, without /v1
    served_model: AgentInModelEval[Frozen[Name | None]]  # name of the model at the server; null = actor.model
    context_limit: InEval[Changeable[Annotated[int, Range(2)] | None]]
    # tokens of prompt and response that the server takes; null = the model's context length

    @property
    def is_served(self) -> bool:
        return True


@dataclass
class AnyActorConfig(ServerActorConfig, TinyLoraActorConfig):
    """All keys of actors: an agent may override any of them."""
