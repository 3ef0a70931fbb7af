"""One agent: its policy, critic and reference policy, and their forward passes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from ippo_cli.agents.critic_view import build_central_view
from ippo_cli.agents.learner import Learner
from ippo_cli.agents.routing import compute_on_group
from ippo_cli.agents.sampled_weights import SampledWeights
from ippo_cli.algorithms.objectives import ValueFunction
from ippo_cli.engine.rank_group import RankGroup, world_group
from ippo_cli.engine.zero import Engine
from ippo_cli.models.actor import MultiAdapterBatch, Policy, PolicyOutput
from ippo_cli.types import CriticView, Episode, Rollout


@dataclass(kw_only=True)
class FrozenAgent(SampledWeights):
    """A policy that is not trained: weights of a checkpoint or of a Hugging Face model."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    held_policy: Policy | None  # None on ranks outside the group
    engine: Engine[Policy] | None = None  # the engine that shards the policy's weights over the ranks, if any
    group: RankGroup = field(default_factory=world_group)  # the ranks that hold it
    remote_config: PretrainedConfig | None = None  # the model's configuration, on ranks outside the group

    @property
    def policy(self) -> Policy:
        """The policy, on a rank that holds it."""
        assert self.held_policy is not None
        return self.held_policy

    @property
    def model_config(self) -> PretrainedConfig:
        if self.held_policy is not None:
            return self.held_policy.lm.config
        assert self.remote_config is not None
        return self.remote_config

    @property
    def shared_base(self) -> MultiAdapterBatch | None:
        return self.policy.shared_base

    @property
    def sampled_policy(self) -> tuple[Policy, Engine[Policy] | None]:
        return self.policy, self.engine

    @contextmanager
    def generation_mode(self, gather: Literal["all", "layer"]) -> Iterator[Policy]:
        policy, engine = self.sampled_policy
        with torch.no_grad() if engine is None else engine.inference(gather=gather), policy.use_adapter():
            yield policy


@dataclass(kw_only=True)
class Agent(SampledWeights):
    """The models and learners of one agent; agents that share weights hold the same learners."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    policy: Learner
    critic: Learner | None  # None when the policy carries the value head, or without a value function
    other_critics: tuple[Learner, ...] = ()  # of an ensemble, without the first
    reference: Policy | None  # the frozen policy of the KL terms; None without one, and on ranks that do not hold it
    has_reference: bool  # whether there is one, on any rank
    reference_group: RankGroup  # the ranks that hold it
    temperature: float
    chunk_tokens: int
    reference_engine: Engine[Policy] | None = None  # the engine that shards the reference over the ranks, if any
    mask_agreement: float | None = None  # fraction of tokens, see `critic.mask_agreement`
    mask_entropy: float | None = None
    reference_update_every: int | None = None  # iterations between copies of the policy into the reference

    @property
    def model_config(self) -> PretrainedConfig:
        return self.policy.model_config

    @property
    def group(self) -> RankGroup:
        """The ranks that hold the policy."""
        return self.policy.group

    @property
    def shared_base(self) -> MultiAdapterBatch | None:
        return self.policy.engine.module.shared_base

    @property
    def has_values(self) -> bool:
        """Whether there is a value function: a separate model or a head on the policy."""
        return isinstance(self._value_learner.objective, ValueFunction)

    @property
    def value_name(self) -> str:
        """The name of the weights that compute its values; the policy's name without a value function."""
        return self._value_learner.name

    @property
    def _value_learner(self) -> Learner:
        """The learner of the value function."""
        return self.policy if self.critic is None else self.critic

    @property
    def sampled_policy(self) -> tuple[Policy, Engine[Policy]]:
        return self.policy.engine.module, self.policy.engine

    @contextmanager
    def generation_mode(self, gather: Literal["all", "layer"]) -> Iterator[Policy]:
        with self.policy.engine.inference(gather=gather) as policy, policy.use_adapter():
            yield policy

    def critic_view(self, episodes: Sequence[Episode], rollout: Rollout) -> CriticView | None:
        """The input of its critic for these episodes; None where the critic reads the agent's rows."""
        layout = self._value_learner.layout
        return None if layout is None else build_central_view(episodes, self.name, rollout, layout)

    @property
    def initial_agent(self) -> FrozenAgent:
        """The agent with its weights before training, for generation."""
        assert self.has_reference
        return FrozenAgent(
            name=self.name,
            tokenizer=self.tokenizer,
            held_policy=self.reference,
            engine=self.reference_engine,
            group=self.reference_group,
            remote_config=self.model_config,
        )

    @property
    def critics(self) -> tuple[Learner, ...]:
        """All learners of critics with a separate engine."""
        return () if self.critic is None else (self.critic, *self.other_critics)

    @torch.no_grad()
    def member_values(self, rollout: Rollout, view: CriticView | None = None) -> list[tuple[Tensor, Tensor]]:
        """The values of each critic of an ensemble, as `values`; of a single one otherwise."""
        return [self._values(learner, rollout, view) for learner in self.critics or (self.policy,)]

    @torch.no_grad()
    def values(self, rollout: Rollout, view: CriticView | None = None) -> tuple[Tensor, Tensor]:
        """Values of the states before action tokens `[B, R]` (0 elsewhere) and after the last action token `[B]`.

        All 0 without a value function; of an ensemble, the mean. `view`: the critic's input that replaces the rows.
        """
        before, after = zip(*self.member_values(rollout, view), strict=True)
        return torch.stack(before).mean(dim=0), torch.stack(after).mean(dim=0)

    def _values(self, learner: Learner, rollout: Rollout, view: CriticView | None) -> tuple[Tensor, Tensor]:
        read = rollout if view is None else view.rollout
        if self.has_values:
            before, after = compute_on_group(learner.group, read, learner.compute_values)
        else:
            before, after = torch.zeros_like(read.logprobs), read.logprobs.new_zeros(len(read.logprobs))
        return before if view is None else view.gather_values(before, rollout), after

    @torch.no_grad()
    def recompute_logprobs(self, rollout: Rollout) -> Rollout:
        """The same responses with log-probabilities of the training forward; `behavior_logprobs` stay, except NaN of
        samplers that give none.
        """

        def compute(rows: Rollout) -> tuple[Tensor]:
            with self.policy.engine.scoring():
                return (self._logprobs(self.policy.engine, rows),)

        (logprobs,) = compute_on_group(self.group, rollout, compute)
        sampled = rollout.behavior_logprobs
        return replace(rollout, logprobs=logprobs, behavior_logprobs=logprobs.where(sampled.isnan(), sampled))

    @torch.no_grad()
    def ref_logprobs(self, rollout: Rollout) -> Tensor:
        """Log-probabilities of the action tokens under the reference, `[B, R]`; the rollout's own without one."""
        if not self.has_reference:
            return rollout.logprobs

        def compute(rows: Rollout) -> tuple[Tensor]:
            assert self.reference is not None
            return (self._logprobs(self.reference, rows),)

        return compute_on_group(self.reference_group, rollout, compute)[0]

    @torch.no_grad()
    def evaluate_actions(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the action tokens and entropies before them, `[B, R]` each, of the current policy."""
        logprobs, entropies = compute_on_group(self.group, rollout, self._evaluate_actions)
        return logprobs, entropies

    def _evaluate_actions(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        logprobs, entropies = torch.zeros_like(rollout.logprobs), torch.zeros_like(rollout.logprobs)
        with self.policy.engine.scoring():
            for rows, sequences in self.policy.iterate_sequences(rollout, final=False):
                output = self.policy.engine(
                    sequences, temperature=self.temperature, chunk_tokens=self.chunk_tokens, with_entropy=True
                )
                assert output.entropy is not None
                logprobs[rows, : output.logprobs.shape[1]] = output.logprobs
                entropies[rows, : output.entropy.shape[1]] = output.entropy
        return logprobs, entropies

    def _logprobs(self, policy: Callable[..., PolicyOutput], rollout: Rollout) -> Tensor:
        result = torch.zeros_like(rollout.logprobs)
        for rows, sequences in self.policy.iterate_sequences(rollout, final=False):
            new = policy(sequences, temperature=self.temperature, chunk_tokens=self.chunk_tokens).logprobs
            result[rows, : new.shape[1]] = new
        return result

    @torch.no_grad()
    def full_kl(self, rollout: Rollout) -> Tensor:
        """The exact KL of the policy from its reference in the state before each action token, `[B, R]`.

        The reference is on the policy's ranks.
        """
        return compute_on_group(self.group, rollout, self._full_kl)[0]

    def _full_kl(self, rollout: Rollout) -> tuple[Tensor]:
        assert self.reference is not None
        result = torch.zeros_like(rollout.logprobs)
        with self.policy.engine.scoring():
            for rows, sequences in self.policy.iterate_sequences(rollout, final=False):
                output = self.policy.engine(
                    sequences, temperature=self.temperature, chunk_tokens=self.chunk_tokens, reference=self.reference
                )
                result[rows, : output.full_kl.shape[1]] = output.full_kl
        return (result,)
