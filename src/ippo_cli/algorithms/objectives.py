"""Training objectives of a learner: named losses from an engine's forward pass over a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor

from ippo_cli.algorithms.losses import Loss, policy_objective, value_objective
from ippo_cli.algorithms.user_objectives import UserLoss
from ippo_cli.config.schema import AlgorithmConfig, TurnValue
from ippo_cli.engine.zero import Engine
from ippo_cli.models.actor import Policy, PolicyOutput
from ippo_cli.models.critic import split_values
from ippo_cli.models.layout import Sequences
from ippo_cli.types import Minibatch, StepContext


class TrainingObjective(Protocol):
    """The training objective of one engine."""

    stage: ClassVar[str]  # names the learner's metrics, its checkpoint's folder and its errors

    @property
    def config(self) -> AlgorithmConfig:
        """The algorithm settings."""
        ...

    @property
    def target_kl(self) -> float | None:
        """The KL from the sampling policy that stops an update early; None to disable."""
        ...

    @property
    def needs_final_state(self) -> bool:
        """Whether a loss uses the state after the last token."""
        ...

    def is_active(self, context: StepContext) -> bool:
        """Whether this iteration trains anything."""
        ...

    def freezes_policy(self, iteration: int) -> bool:
        """Whether a policy that shares the engine keeps its weights in this iteration (counted from 0)."""
        ...

    def losses(
        self, engine: Engine[Any], sequences: Sequences, batch: Minibatch, context: StepContext
    ) -> dict[str, Loss]:
        """The losses of one micro-batch, encoded as `sequences`, by stage; stages name the metrics."""
        ...


@runtime_checkable
class ValueFunction(Protocol):
    """An objective with an engine that returns values."""

    def values(self, engine: Engine[Any], sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Values of the states before action tokens `[b, R]` (0 elsewhere) and after all `[b]`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObjective:
    """The policy's loss, entropy bonus and KL term."""

    stage: ClassVar[str] = "policy"
    config: AlgorithmConfig
    response_budget: int  # tokens of all turns of an agent: the constant of loss_aggregation=seq-mean-token-sum-norm
    temperature: float
    chunk_tokens: int
    reference: Policy | None  # where the loss has the exact KL from it; None elsewhere
    warmup: int  # first iterations without an update of the policy
    user_loss: UserLoss | None = None  # of `algorithm.objective=path.py:name`

    @property
    def target_kl(self) -> float | None:
        return self.config.target_kl

    @property
    def needs_final_state(self) -> bool:
        return False

    def is_active(self, context: StepContext) -> bool:
        return context.iteration >= self.warmup

    def freezes_policy(self, iteration: int) -> bool:
        return False

    def losses(
        self, engine: Engine[Any], sequences: Sequences, batch: Minibatch, context: StepContext
    ) -> dict[str, Loss]:
        output = self._forward(engine, sequences)
        return {"policy": policy_objective(output, batch, self.config, self.response_budget, self.user_loss)}

    def _forward(self, engine: Engine[Any], sequences: Sequences, *, head_alone: bool = False) -> PolicyOutput:
        return engine(
            sequences,
            temperature=self.temperature,
            chunk_tokens=self.chunk_tokens,
            with_entropy=True,
            reference=self.reference,
            head_alone=head_alone,
            with_router_loss=self.config.router_loss_coef > 0.0,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueObjective:
    """A separate critic's loss."""

    stage: ClassVar[str] = "value"
    config: AlgorithmConfig
    response_budget: int

    @property
    def target_kl(self) -> float | None:
        return None

    @property
    def needs_final_state(self) -> bool:
        return self.config.turn_value is TurnValue.post

    def is_active(self, context: StepContext) -> bool:
        return True

    def freezes_policy(self, iteration: int) -> bool:
        return False

    def losses(
        self, engine: Engine[Any], sequences: Sequences, batch: Minibatch, context: StepContext
    ) -> dict[str, Loss]:
        outputs, head = split_values(engine(sequences), sequences), engine.module.value_head
        return {"value": value_objective(*outputs, batch, self.config, self.response_budget, head)}

    def values(self, engine: Engine[Any], sequences: Sequences) -> tuple[Tensor, Tensor]:
        return split_values(engine.module.value_head.to_values(engine(sequences)), sequences)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointObjective(PolicyObjective):
    """The loss of the policy and of its value head, from one forward pass."""

    stage: ClassVar[str] = "joint"

    @property
    def needs_final_state(self) -> bool:
        return self.config.turn_value is TurnValue.post

    def is_active(self, context: StepContext) -> bool:
        return True

    def freezes_policy(self, iteration: int) -> bool:
        return iteration < self.warmup

    def losses(
        self, engine: Engine[Any], sequences: Sequences, batch: Minibatch, context: StepContext
    ) -> dict[str, Loss]:
        head_alone = self.freezes_policy(context.iteration)
        output = self._forward(engine, sequences, head_alone=head_alone)
        assert output.values is not None
        assert output.final_values is not None
        policy = policy_objective(output, batch, self.config, self.response_budget, self.user_loss)
        if head_alone:  # the policy's term stays in the graph with weight 0
            policy = replace(policy, total=0.0 * policy.total)
        value = value_objective(
            output.values,
            output.final_values,
            batch,
            self.config,
            self.response_budget,
            engine.module.value_head,
        )
        return {"policy": policy, "value": value}

    def values(self, engine: Engine[Any], sequences: Sequences) -> tuple[Tensor, Tensor]:
        output: PolicyOutput = engine(sequences, temperature=self.temperature, chunk_tokens=self.chunk_tokens)
        head, mask = engine.module.value_head, sequences.response_mask
        assert output.values is not None
        assert output.final_values is not None
        return head.to_values(output.values).masked_fill(~mask, 0.0), head.to_values(output.final_values)
