"""Converts episodes to plain data, for `samples/*.jsonl` and sample tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ippo_cli.types import Episode
from ippo_cli.user_code.errors import format_user_error

SCORE_DIGITS = 6  # significant digits
NO_PARTS: Mapping[str, Sequence[float]] = {}

# docs/episodes.md documents the keys; later versions must be able to read these files.


def sample_rows(
    mode: str,
    episodes: Sequence[Episode],
    scores: Mapping[str, Tensor],
    count: int,
    parts: Mapping[str, Sequence[float]] = NO_PARTS,
) -> list[dict[str, Any]]:
    """The first `count` episodes with their turns, scores and ends.

    `scores`: `[B, K]` by turn, NaN (written as None) if missing. `parts`: additional numbers of the reward, `[B]`,
    added to those of the environment.
    """
    return [
        _episode_row(
            mode,
            episode,
            {name: numbers[row].tolist() for name, numbers in scores.items()},
            {**episode.parts, **{name: value[row] for name, value in parts.items() if math.isfinite(value[row])}},
        )
        for row, episode in enumerate(episodes[:count])
    ]


def _episode_row(
    mode: str, episode: Episode, scores: Mapping[str, list[float]], parts: Mapping[str, float]
) -> dict[str, Any]:
    remaining_scores = {name: iter(numbers) for name, numbers in scores.items()}
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
