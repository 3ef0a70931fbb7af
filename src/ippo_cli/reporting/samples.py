"""Episodes as plain data: the lines of `samples/*.jsonl`, and what tables of samples are made of."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from ippo_cli.types import Episode
from ippo_cli.user_code.errors import format_user_error

SCORE_DIGITS = 6  # significant ones
NO_PARTS: Mapping[str, Sequence[float]] = {}

# Keys are documented in docs/episodes.md; a file that was written by one version is read by the next.


def sample_rows(
    mode: str,
    episodes: Sequence[Episode],
    scores: Mapping[str, Tensor],
    count: int,
    parts: Mapping[str, Sequence[float]] = NO_PARTS,
) -> list[dict[str, Any]]:
    """The first episodes: what each agent was told and wrote in turn, what that was paid, and how it ended.

    `scores` are `[B, K]` by turn, NaN where there are none; what is not known is None. `parts`: further numbers of the
    reward, `[B]`, beside those of the environment.
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
    """What an agent was told and wrote last, and the score of its whole part; None where it never spoke."""
    own = episode.of(agent)
    return {
        "prompt": own[-1].observation if own else None,
        "response": own[-1].completion.text if own else None,
        "score": _round_score(sum(scores)) if own else None,
    }


def _round_score(value: float) -> float | None:
    """Scores are added up in float32: what lies beyond its digits is rounding, and nothing that was paid."""
    known = _finite_or_none(value)
    return known if known is None or known.is_integer() else float(f"{known:.{SCORE_DIGITS}g}")


def _finite_or_none(value: float) -> float | None:
    """JSON has no number that is not finite."""
    return value if math.isfinite(value) else None
