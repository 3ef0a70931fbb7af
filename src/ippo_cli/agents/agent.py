"""One agent: its policy, its critic, its reference, and what can be asked of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ippo_cli.agents.learner import Learner
from ippo_cli.models.actor import Policy
from ippo_cli.models.critic import split_values
from ippo_cli.types import Rollout


@dataclass(kw_only=True)
class Agent:
    """Owns everything that is trained for one name; no other agent holds any of it (a frozen reference may be shared)."""

    name: str
    tokenizer: PreTrainedTokenizerBase
    actor: Learner  # role `policy`, or `joint` when it carries the value head
    critic: Learner | None  # role `value`; None when the actor carries the value head
    reference: Policy | None  # the initial weights, frozen; None when no KL is asked for
    temperature: float
    chunk_tokens: int

    @property
    def learners(self) -> list[Learner]:
        return [self.actor] if self.critic is None else [self.actor, self.critic]

    @torch.no_grad()
    def values(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Values of the states before own tokens `[B, R]` (0 elsewhere) and after the last own token `[B]`."""
        before = torch.zeros_like(rollout.logprobs)
        after = before.new_zeros(len(before))
        learner = self.critic or self.actor
        learner.engine.module.eval()
        for rows, sequences in learner.sequences(rollout):
            if self.critic is not None:
                new, final = split_values(self.critic.engine(sequences), sequences)
            else:
                output = self.actor.engine(sequences, temperature=self.temperature, chunk_tokens=self.chunk_tokens)
                new, final = output.values, output.final_values
            before[rows, : new.shape[1]] = new
            after[rows] = final
        return before, after

    @torch.no_grad()
    def ref_logprobs(self, rollout: Rollout) -> Tensor:
        """Log-probabilities of the own tokens under the reference, `[B, R]`; the rollout's own where there is none."""
        if self.reference is None:
            return rollout.logprobs
        result = torch.zeros_like(rollout.logprobs)
        for rows, sequences in self.actor.sequences(rollout):
            new = self.reference(sequences, temperature=self.temperature, chunk_tokens=self.chunk_tokens).logprobs
            result[rows, : new.shape[1]] = new
        return result
