"""Converts episodes to plain data, for `samples/*.jsonl` and sample tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ippo_cli.reporting.token_values import TurnTokens
from ippo_cli.types import Episode
from ippo_cli.user_code.errors import format_user_error

SCORE_DIGITS = 6  # significant digits

# docs/episodes.md documents the keys; later versions must be able to read these files.


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleDetails:
    """What sample rows show beyond episodes and scores; rows of all fields are those of the episodes."""

    parts: Mapping[str, Sequence[float]] = field(default_factory=dict)  # of the reward, `[B]`, by name; NaN: none
    groups: Sequence[int] | None = None  # the prompt of each episode
    credit: Mapping[str, Mapping[str, Sequence[float]]] = field(default_factory=dict)  # by agent and method; `[B]`
    tokens: Mapping[str, Sequence[Sequence[TurnTokens]]] = field(default_factory=dict)  # by agent, row and turn


NO_DETAILS = SampleDetails()


def sample_rows(
    mode: str,
    episodes: Sequence[Episode],
    scores: Mapping[str, Tensor],
    count: int,
    details: SampleDetails = NO_DETAILS,
) -> list[dict[str, Any]]:
    """The first `count` episodes with their turns, scores and ends. `scores`: `[B, K]` by turn, NaN if missing."""
    rows = []
    for row, episode in enumerate(episodes[:count]):
        by_turn = {name: numbers[row].tolist() for name, numbers in scores.items()}
        reward_parts = {name: value[row] for name, value in details.parts.items() if math.isfinite(value[row])}
        tokens = {name: by_row[row] for name, by_row in details.tokens.items()}
        sample = _episode_row(mode, episode, by_turn, {**episode.parts, **reward_parts}, tokens)
        if details.groups is not None:
            sample["group"] = details.groups[row]
        if details.credit:
            sample["credit"] = {
                name: {method: _round_score(numbers[row]) for method, numbers in by_method.items()}
                for name, by_method in details.credit.items()
            }
        rows.append(sample)
    return rows


def _episode_row(
    mode: str,
    episode: Episode,
    scores: Mapping[str, list[float]],
    parts: Mapping[str, float],
    tokens: Mapping[str, Sequence[TurnTokens]],
) -> dict[str, Any]:
    remaining_scores = {name: iter(numbers) for name, numbers in scores.items()}
    remaining_tokens = {name: iter(turns) for name, turns in tokens.items()}
    return {
        "mode": mode,
        "index": episode.index,
        "agents": {name: _agent_row(episode, name, numbers) for name, numbers in scores.items()},
        "turns": [
            {
                "agent": turn.agent,
                "step": turn.step,
                "observation": turn.observation,
                "response": turn.completion.text,
                "cut": not turn.completion.finished,
                "score": _round_score(next(remaining_scores[turn.agent])),
                **({"tokens": next(remaining_tokens[turn.agent])} if turn.agent in remaining_tokens else {}),
            }
            for turn in episode.turns
        ],
        "terminated": episode.terminated,
        "truncation": episode.truncation,
        "partners": sorted(episode.partners),
        "failure": None if episode.failure is None else format_user_error(episode.failure),
        "last_observations": dict(episode.last_observations),
        "parts": {name: _finite_or_none(value) for name, value in parts.items()},
    }


def _agent_row(episode: Episode, agent: str, scores: list[float]) -> dict[str, Any]:
    """An agent's last observation and response, and its total score; None without turns."""
    own = episode.turns_of_agent(agent)
    return {
        "prompt": own[-1].observation if own else None,
        "response": own[-1].completion.text if own else None,
        "score": _round_score(sum(scores)) if own else None,
    }


def _round_score(value: float) -> float | None:
    """Round a score to the precision of float32, in which scores are summed."""
    known = _finite_or_none(value)
    return known if known is None or known.is_integer() else float(f"{known:.{SCORE_DIGITS}g}")


def _finite_or_none(value: float) -> float | None:
    """The value, or None if it is not finite, because JSON has no such number."""
    return value if math.isfinite(value) else None
