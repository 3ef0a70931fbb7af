"""From scores to targets: rewards with their KL term, values, advantages, returns, and what may be trained on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ippo_cli.agents.agent import Agent
from ippo_cli.config.schema import AlgorithmConfig, Truncation
from ippo_cli.engine import distributed
from ippo_cli.formulas import adaptive_kl_step, gae, kl_estimate, masked_whiten, place_scores
from ippo_cli.types import Rollout, Scores, Targets


@dataclass(kw_only=True)
class Algorithm:
    """The objective's settings and its only state: each agent's KL coefficient."""

    config: AlgorithmConfig
    response_budget: int  # rollout.max_new_tokens: the constant of loss_aggregation=seq-mean-token-sum-norm
    kl_coef: dict[str, float] = field(default_factory=dict)  # of the reward's KL term, by agent

    def kl_coefs(self, agents: Mapping[str, Agent]) -> dict[str, float | None]:
        """The reward's KL coefficient that the next targets will use; None for an agent without a reference."""
        return {
            name: self.kl_coef.get(name, self.config.kl.reward.coef) if agent.reference is not None else None
            for name, agent in agents.items()
        }

    def targets(
        self, agents: Mapping[str, Agent], rollouts: Mapping[str, Rollout], scores: Mapping[str, Scores]
    ) -> dict[str, Targets]:
        """Every agent's targets from its own rollout and scores alone."""
        return {name: self._agent_targets(agents[name], rollouts[name], scores[name]) for name in agents}

    def _agent_targets(self, agent: Agent, rollout: Rollout, scores: Scores) -> Targets:
        config, mask = self.config, rollout.response_mask
        values, final_values = agent.values(rollout)
        ref_logprobs = agent.ref_logprobs(rollout)
        rewards = place_scores(self._penalised(scores.score, rollout), mask, rollout.turn)
        rewards = rewards - self._kl_penalty(agent.name, rollout, ref_logprobs)
        advantages, returns = gae(
            self._bootstrapped(rewards, final_values, rollout), values, mask,
            gamma=config.gamma, gae_lambda=config.gae_lambda,
        )  # fmt: skip
        trained = scores.valid & (rollout.finished if config.truncation is Truncation.mask else scores.valid)
        loss_mask = mask & trained[:, None]
        if config.advantage_normalization:
            moments = distributed.masked_moments(advantages, loss_mask)
            advantages = masked_whiten(advantages, loss_mask, moments=moments)
        return Targets(
            rewards=rewards, values=values, final_values=final_values, ref_logprobs=ref_logprobs,
            advantages=advantages, returns=returns, loss_mask=loss_mask,
        )  # fmt: skip

    def _penalised(self, score: Tensor, rollout: Rollout) -> Tensor:
        if self.config.truncation is not Truncation.penalty:
            return score
        return score - self.config.truncation_penalty * (~rollout.finished).float()[:, None]

    def _bootstrapped(self, rewards: Tensor, final_values: Tensor, rollout: Rollout) -> Tensor:
        """A truncated row did not end: what it would still have earned stands in for it, discounted once."""
        if self.config.truncation is not Truncation.bootstrap:
            return rewards
        tail = (self.config.gamma * final_values * ~rollout.finished)[:, None]
        last_turn = torch.where(rollout.response_mask, 0, -1)  # the whole row as one turn: one last own token
        return rewards + place_scores(tail, rollout.response_mask, last_turn)

    def _kl_penalty(self, agent: str, rollout: Rollout, ref_logprobs: Tensor) -> Tensor:
        """The reward's KL term; steps the coefficient afterwards, so that a batch uses the one from before it."""
        settings = self.config.kl.reward
        coef = self.kl_coef.setdefault(agent, settings.coef)
        if settings.coef == 0.0:
            return torch.zeros_like(ref_logprobs)
        kl = kl_estimate(rollout.logprobs, ref_logprobs, estimator=settings.estimator) * rollout.response_mask
        if settings.target is not None:
            rows = kl.double().sum(dim=1) / rollout.response_mask.sum(dim=1).clamp(min=1)  # per sequence, per token
            total = distributed.all_sum(torch.stack([rows.sum(), rows.new_tensor(float(len(rows)))])).tolist()
            self.kl_coef[agent] = float(
                adaptive_kl_step(coef, total[0] / total[1], target=settings.target, horizon=settings.horizon,
                                 num_samples=int(total[1]))
            )  # fmt: skip
        return coef * kl
