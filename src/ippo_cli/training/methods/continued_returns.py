"""Returns of continuations from states of an agent: what its critic would learn of these states."""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def compute_returns(
    config: Config,
    algorithm: Algorithm,
    agent: Agent,
    reward: RewardFunction,
    continuations: BranchEpisodes,
    states: Sequence[State],
    count: int,
    *,
    is_by_turn: bool,
    device: torch.device,
) -> Tensor:
    """The returns from each state in its `count` continuations, `[n, count]` float64; NaN without a usable score.

    It is what the targets of training sum: the processed score, penalties of truncation, the KL term of the reward, the
    bootstrap value of truncated episodes, discounted by `gamma` per action. Collective.
    """
    returns, valid, rollout = episode_returns(
        config, algorithm, agent, reward, continuations.episodes, is_by_turn=is_by_turn, device=device
    )
    rows = [state for state in states for _ in range(count)]
    columns = state_columns(rollout, rows, range(len(rows)))
    reached = torch.tensor([not diverged for diverged in continuations.has_diverged], dtype=torch.bool, device=device)
    found = returns[torch.arange(len(rows), device=device), columns].double()
    return found.where(valid & reached, math.nan).view(len(states), count).cpu()


def estimate_means(returns: Tensor) -> tuple[Tensor, Tensor]:
    """Means of states' returns `[n, count]`, and sampling variances of the means, `[n]` each; NaN is excluded.

    A state with one return has a variance of 0, one without any a mean of NaN.
    """
    counts = torch.isfinite(returns).sum(dim=1)
    means = returns.nanmean(dim=1)
    squares = (returns - means[:, None]).square().nansum(dim=1)
    return means, squares / (counts - 1).clamp(min=1) / counts.clamp(min=1)


def episode_returns(
    config: Config,
    algorithm: Algorithm,
    agent: Agent,
    reward: RewardFunction,
    episodes: Sequence[Episode],
    *,
    is_by_turn: bool,
    device: torch.device,
) -> tuple[Tensor, Tensor, Rollout]:
    """The returns of an agent from each of its actions `[B, R]`, the rows with a usable score `[B]`, and the rollout.

    Collective.
    """
    name, weights = agent.name, reward_weights(config)
    filtered = config.task.agents[name].rollout.has_filters
    rollout = build_rollout(episodes, name, device=device, filtered=filtered)
    raw = compute_raw_scores(reward, episodes, weights, [name], config.reward)
    scored = process_scores(raw, episodes, config.reward, {name: ScoreMoments()}, device=device, observe=False)
    if config.rollout.recompute_logprobs and config.algorithm.kl.reward.coef:
        rollout = agent.recompute_logprobs(rollout)
    view = agent.critic_view(episodes, rollout)
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
    returns_algorithm = use_reward_to_go(algorithm, Credit.turn if is_by_turn else Credit.token)
    targets, _ = returns_algorithm.compute_targets({name: agent}, experience)
    return targets[name].returns, targets[name].loss_mask.any(dim=1), rollout


def state_columns(rollout: Rollout, states: Sequence[State], rows: Sequence[int]) -> Tensor:
    """The column of the token after each state, in the given rows of a rollout, `[n]`."""
    if not states:
        return torch.zeros(0, dtype=torch.long, device=rollout.turn.device)
    turns = torch.tensor([state.turn for state in states], device=rollout.turn.device)
    positions = torch.tensor([state.position for state in states], device=rollout.turn.device)
    is_turn = rollout.turn[torch.as_tensor(rows, device=rollout.turn.device)] == turns[:, None]
    return is_turn.long().argmax(dim=1) + positions
