"""Reference values of states: means of sampled continuations, or expectations over enumerated responses."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from ippo_cli.evaluation.report_session import ReportSession
from ippo_cli.rewards.counterfactual import replace_answer
from ippo_cli.rollout.branches import State
from ippo_cli.rollout.enumerate import WeightedResponses, enumerate_responses
from ippo_cli.rollout.generator import context_limit, make_sampling
from ippo_cli.training.methods.continued_returns import estimate_means, state_columns
from ippo_cli.types import Episode

EPISODES_AT_ONCE = 8192
"""Enumerated episodes that are scored in one call."""

Report = Callable[[int, int], None]  # numbers of finished and of all states


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """Reference values of `n` states; NaN where there is none."""

    means: Tensor  # [n] float64
    noise: Tensor  # [n] float64: sampling variance of the means; 0 for exact ones
    halves: Tensor  # [n, 2] float64: means of two halves of the continuations
    num_tokens: int  # generated


def sample_references(
    session: ReportSession, agent: str, states: Sequence[State], count: int, *, is_by_turn: bool
) -> References:
    """Means over `count` continuations of each state; states with fewer than two usable ones have none."""
    continuations = session.sample_continuations(states, count)
    source = session.return_source(agent, is_by_turn=is_by_turn)
    returns = source.compute_returns(continuations, states, count)
    return summarize_returns(returns, continuations.num_tokens)


def summarize_returns(returns: Tensor, num_tokens: int) -> References:
    """References from returns `[n, k]` of continuations; NaN: not usable."""
    means, noise = estimate_means(returns)
    halves = torch.stack([returns[:, ::2].nanmean(dim=1), returns[:, 1::2].nanmean(dim=1)], dim=1)
    means = means.where(torch.isfinite(halves).all(dim=1), math.nan)  # so at least two returns
    return References(means=means, noise=noise, halves=halves, num_tokens=num_tokens)


def enumerate_references(
    session: ReportSession, agent: str, states: Sequence[State], max_episodes: int, *, is_by_turn: bool, report: Report
) -> References:
    """Expectations over the responses of all agents in the step; NaN where they make more than `max_episodes`.

    The agent's response begins with the tokens before the state; the other agents respond to their own prompts.
    """
    known: dict[tuple[str, tuple[int, ...], tuple[int, ...]], WeightedResponses | None] = {}
    means = torch.full((len(states),), math.nan, dtype=torch.float64)
    waiting: list[tuple[int, list[Episode], Tensor]] = []
    num_waiting = 0
    for number, state in enumerate(states):
        report(number, len(states))
        branch = _enumerate_episodes(session, agent, state, max_episodes, known)
        if branch is not None:
            waiting.append((number, *branch))
            num_waiting += len(branch[0])
        if waiting and (num_waiting >= EPISODES_AT_ONCE or number == len(states) - 1):
            _score_enumerated(session, agent, states, waiting, means, is_by_turn=is_by_turn)
            waiting, num_waiting = [], 0
    if waiting:
        _score_enumerated(session, agent, states, waiting, means, is_by_turn=is_by_turn)
    tokens = sum(len(c.ids) for found in known.values() if found is not None for c in found.completions)
    halves = torch.stack([means, means], dim=1)
    return References(means=means, noise=torch.zeros_like(means), halves=halves, num_tokens=tokens)


def _enumerate_episodes(
    session: ReportSession,
    agent: str,
    state: State,
    max_episodes: int,
    known: dict[tuple[str, tuple[int, ...], tuple[int, ...]], WeightedResponses | None],
) -> tuple[list[Episode], Tensor] | None:
    """The episodes with every combination of responses, and their probabilities; None if these are too many."""
    origin, rollout = session.episodes[state.episode], session.config.rollout
    responses: dict[str, WeightedResponses] = {}
    for turn in origin.turns:
        first_tokens = tuple(turn.completion.ids[: state.position].tolist()) if turn.agent == agent else ()
        key = (turn.agent, tuple(turn.prompt), first_tokens)
        if key not in known:
            policy = session.team.generation_policies[turn.agent]
            with policy.generation_mode(rollout.zero3_gather.value) as generating:
                known[key] = enumerate_responses(
                    generating.lm,
                    policy.tokenizer,
                    turn.prompt,
                    first_tokens,
                    make_sampling(session.config.task.agents[turn.agent].rollout),
                    context_limit=context_limit(policy.model_config, rollout),
                    max_count=max_episodes,
                )
        found = known[key]
        if found is None:
            return None
        responses[turn.agent] = found
    if math.prod(len(found.completions) for found in responses.values()) > max_episodes:
        return None
    episodes, probabilities = [origin], torch.ones(1, dtype=torch.float64)
    for name, found in responses.items():
        pairs = product(episodes, found.completions)
        episodes = [replace_answer(episode, name, (answer, not answer.finished)) for episode, answer in pairs]
        probabilities = (probabilities[:, None] * found.probabilities).flatten()
    return episodes, probabilities


def _score_enumerated(
    session: ReportSession,
    agent: str,
    states: Sequence[State],
    waiting: Sequence[tuple[int, list[Episode], Tensor]],
    means: Tensor,
    *,
    is_by_turn: bool,
) -> None:
    """Set the expectation of each state; a state with an episode without a score has none."""
    source = session.return_source(agent, is_by_turn=is_by_turn)
    played = [episode for _, episodes, _ in waiting for episode in episodes]
    returns, valid, rollout = source.episode_returns(played)
    rows = [states[number] for number, episodes, _ in waiting for _ in episodes]
    columns = state_columns(rollout, rows, range(len(rows)))
    numbers = returns.gather(1, columns[:, None])[:, 0].double().where(valid, math.nan).cpu()
    for (number, _, probabilities), own in zip(
        waiting, numbers.split([len(episodes) for _, episodes, _ in waiting]), strict=True
    ):
        means[number] = (own * probabilities).sum() / probabilities.sum()
