"""Returns of continuations from states of an agent: what its critic would learn of these states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ippo_cli.agents.agent import Agent
from ippo_cli.config.reward_weights import reward_weights
from ippo_cli.config.schema import Config, Credit
from ippo_cli.rewards.contract import RewardFunction
from ippo_cli.rewards.moments import ScoreMoments
from ippo_cli.rewards.score import compute_raw_scores, process_scores
from ippo_cli.rollout.branches import BranchEpisodes, State
from ippo_cli.rollout.rows import build_rollout
from ippo_cli.training.methods.reward_to_go import use_reward_to_go
from ippo_cli.training.targets import Algorithm
from ippo_cli.types import Batch, Episode, Experience, Rollout


@dataclass(frozen=True, kw_only=True)
class ReturnSource:
    """Computes an agent's returns as the targets of training do: the processed score, penalties of truncation, the KL
    term of the reward, the bootstrap value of truncated episodes, discounted by `gamma` per action.
    """

    config: Config
    algorithm: Algorithm
    agent: Agent
    reward: RewardFunction
    is_by_turn: bool  # whether a turn is one action
    device: torch.device

    def compute_returns(self, continuations: BranchEpisodes, states: Sequence[State], count: int) -> Tensor:
        """The returns from each state in its `count` continuations, `[n, count]` float64; NaN without a usable score.

        Collective.
        """
        returns, valid, rollout = self.episode_returns(continuations.episodes)
        rows = [state for state in states for _ in range(count)]
        columns = state_columns(rollout, rows, range(len(rows)))
        reached = torch.tensor(
            [not diverged for diverged in continuations.has_diverged], dtype=torch.bool, device=self.device
        )
        found = returns[torch.arange(len(rows), device=self.device), columns].double()
        return found.where(valid & reached, math.nan).view(len(states), count).cpu()

    def episode_returns(self, episodes: Sequence[Episode]) -> tuple[Tensor, Tensor, Rollout]:
        """The returns from each action `[B, R]`, the rows with a usable score `[B]`, and the rollout. Collective."""
        config, device, name = self.config, self.device, self.agent.name
        weights = reward_weights(config)
        filtered = config.task.agents[name].rollout.has_filters
        rollout = build_rollout(episodes, name, device=device, filtered=filtered)
        raw = compute_raw_scores(self.reward, episodes, weights, [name], config.reward)
        scored = process_scores(raw, episodes, config.reward, {name: ScoreMoments()}, device=device, observe=False)
        if config.rollout.recompute_logprobs and config.algorithm.kl.reward.coef:
            rollout = self.agent.recompute_logprobs(rollout)
        view = self.agent.critic_view(episodes, rollout)
        experience = Experience(
            batch=Batch(
                examples=[episode.example for episode in episodes],
                index=torch.tensor([episode.index for episode in episodes], dtype=torch.long),
            ),
            episodes=list(episodes),
            sampled={name: rollout},
            rollouts={name: rollout},
            scores=scored.scores,
            greedy={},
            views={} if view is None else {name: view},
        )
        returns_algorithm = use_reward_to_go(self.algorithm, Credit.turn if self.is_by_turn else Credit.token)
        targets, _ = returns_algorithm.compute_targets({name: self.agent}, experience)
        return targets[name].returns, targets[name].loss_mask.any(dim=1), rollout


def estimate_means(returns: Tensor) -> tuple[Tensor, Tensor]:
    """Means of states' returns `[n, count]`, and sampling variances of the means, `[n]` each; NaN is excluded.

    A state with one return has a variance of 0, one without any a mean of NaN.
    """
    counts = torch.isfinite(returns).sum(dim=1)
    means = returns.nanmean(dim=1)
    squares = (returns - means[:, None]).square().nansum(dim=1)
    return means, squares / (counts - 1).clamp(min=1) / counts.clamp(min=1)


def state_columns(rollout: Rollout, states: Sequence[State], rows: Sequence[int]) -> Tensor:
    """The column of the token after each state, in the given rows of a rollout, `[n]`."""
    if not states:
        return torch.zeros(0, dtype=torch.long, device=rollout.turn.device)
    turns = torch.tensor([state.turn for state in states], device=rollout.turn.device)
    positions = torch.tensor([state.position for state in states], device=rollout.turn.device)
    is_turn = rollout.turn[torch.as_tensor(rows, device=rollout.turn.device)] == turns[:, None]
    return is_turn.long().argmax(dim=1) + positions
