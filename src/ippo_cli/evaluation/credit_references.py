"""Reference credit of turns, Q(state, turn) - V(state): from sampled continuations, or from all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from ippo_cli.config.reward_weights import reward_weights
from ippo_cli.evaluation.critic_references import References, summarize_returns
from ippo_cli.evaluation.report_session import ReportSession
from ippo_cli.formulas import score_to_go
from ippo_cli.rewards.score import compute_raw_scores
from ippo_cli.rollout.branches import PlayEpisodes, State
from ippo_cli.rollout.continuations import state_key
from ippo_cli.rollout.enumerate import WeightedResponses, enumerate_responses
from ippo_cli.rollout.enumerated_episodes import enumerate_episodes
from ippo_cli.rollout.generator import context_limit, make_sampling
from ippo_cli.types import Episode

Report = Callable[[int, int], None]  # numbers of finished and of all turns


def turn_returns(session: ReportSession, episodes: Sequence[Episode], agent: str) -> Tensor:
    """The discounted sum of the agent's scores from each turn on, `[B, K]` float64; NaN in rows without a score."""
    config = session.config
    raw = compute_raw_scores(session.reward, episodes, reward_weights(config), [agent], config.reward)
    gamma = 1.0 if config.algorithm.gamma is None else config.algorithm.gamma
    returns = score_to_go(raw.numbers[agent].double(), gamma=gamma)
    return returns.masked_fill(raw.failed[agent][:, None], math.nan)


def sample_credit(session: ReportSession, agent: str, turns: Sequence[State], count: int) -> References:
    """The mean return of `count` continuations after each turn minus that of `count` from before it."""
    sizes = [len(turn.turn_of(session.episodes).completion.ids) for turn in turns]
    after = [
        State(episode=turn.episode, agent=agent, turn=turn.turn, position=size)
        for turn, size in zip(turns, sizes, strict=True)
    ]
    found = [_sample_returns(session, agent, states, count) for states in (after, turns)]
    (q, q_tokens), (v, v_tokens) = found
    q_mean, v_mean = summarize_returns(q, q_tokens), summarize_returns(v, v_tokens)
    return References(
        means=q_mean.means - v_mean.means,
        noise=q_mean.noise + v_mean.noise,
        halves=q_mean.halves - v_mean.halves,
        num_tokens=q_tokens + v_tokens,
    )


def _sample_returns(session: ReportSession, agent: str, states: Sequence[State], count: int) -> tuple[Tensor, int]:
    """Returns from the turn of each state in its continuations, `[n, count]`, and the number of sampled tokens."""
    played = session.sample_continuations(states, count)
    returns = turn_returns(session, played.episodes, agent)
    turn = torch.tensor([state.turn for state in states for _ in range(count)])
    own = returns.gather(1, turn[:, None].clamp(max=returns.shape[1] - 1))[:, 0]
    reached = torch.tensor([not diverged for diverged in played.has_diverged], dtype=torch.bool)
    return own.where(reached, math.nan).view(len(states), count), played.num_tokens


def enumerate_credit(
    session: ReportSession, play: PlayEpisodes, agent: str, turns: Sequence[State], max_episodes: int, report: Report
) -> References:
    """The credit from all episodes that continue from before a turn; NaN where these are more than `max_episodes`.

    A turn that is among the responses that are left out has none.
    """
    responses: dict[tuple[str, tuple[int, ...]], WeightedResponses | None] = {}
    known: dict[Hashable, dict[tuple[int, ...], tuple[float, float]]] = {}  # by state: by turn, probability and return

    def enumerate_turn(name: str, prompt: Sequence[int]) -> WeightedResponses | None:
        key = (name, tuple(prompt))
        if key not in responses:
            responses[key] = _enumerate_turn(session, name, prompt, max_episodes)
        return responses[key]

    is_seedless = session.config.task.built_in_protocol is not None
    means: list[float] = []
    for number, state in enumerate(turns):
        report(number, len(turns))
        origin = session.episodes[state.episode]
        # Environments depend on the seed of the episode; the built-in protocols do not.
        key = (state_key(origin, state), str(origin.example) if is_seedless else origin.index)
        if key not in known:
            found = enumerate_episodes(play, session.generator, enumerate_turn, session.episodes, state, max_episodes)
            known[key] = {} if found is None else _returns_by_turn(session, found, state)
        means.append(_credit(known[key], tuple(state.turn_of(session.episodes).completion.ids.tolist())))
    exact = torch.tensor(means, dtype=torch.float64)
    tokens = sum(len(c.ids) for found in responses.values() if found is not None for c in found.completions)
    return References(
        means=exact, noise=torch.zeros_like(exact), halves=torch.stack([exact, exact], dim=1), num_tokens=tokens
    )


def _enumerate_turn(
    session: ReportSession, agent: str, prompt: Sequence[int], max_count: int
) -> WeightedResponses | None:
    policy, rollout = session.team.generation_policies[agent], session.config.rollout
    with policy.generation_mode(rollout.zero3_gather.value) as generating:
        return enumerate_responses(
            generating.lm,
            policy.tokenizer,
            prompt,
            (),
            make_sampling(session.config.task.agents[agent].rollout),
            context_limit=context_limit(policy.model_config, rollout),
            max_count=max_count,
        )


def _returns_by_turn(
    session: ReportSession, found: Sequence[tuple[Episode, float]], state: State
) -> dict[tuple[int, ...], tuple[float, float]]:
    """By the tokens of the turn: its probability, and the sum of the returns weighted by their probabilities."""
    returns = turn_returns(session, [episode for episode, _ in found], state.agent)[:, state.turn].tolist()
    by_turn: dict[tuple[int, ...], tuple[float, float]] = {}
    for (episode, probability), value in zip(found, returns, strict=True):
        key = tuple(episode.turns_of_agent(state.agent)[state.turn].completion.ids.tolist())
        chance, total = by_turn.get(key, (0.0, 0.0))
        by_turn[key] = chance + probability, total + probability * value
    return by_turn


def _credit(by_turn: dict[tuple[int, ...], tuple[float, float]], turn: tuple[int, ...]) -> float:
    if turn not in by_turn:
        return math.nan
    chances, totals = zip(*by_turn.values(), strict=True)
    chance, total = by_turn[turn]
    return total / chance - sum(totals) / sum(chances)
