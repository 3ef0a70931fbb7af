"""Episodes of given turns. Tests import this file by its path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ippo_cli.types import Completion, Episode, Turn


def turn(agent: str, step: int, observation: str, response: str, *, finished: bool = True, tokens: int = 0) -> Turn:
    numbers = torch.zeros(tokens)
    said = Completion(ids=numbers.long(), logprobs=numbers, behavior_logprobs=numbers, text=response, finished=finished)
    return Turn(agent=agent, step=step, observation=observation, prompt=[1], completion=said)


def episode(turns: Sequence[Turn], **changes: Any) -> Episode:
    """One that ended by itself and paid nothing, unless told otherwise."""
    values: dict[str, Any] = {
        "example": {},
        "index": 0,
        "turns": list(turns),
        "rewards": [{} for _ in range(max([0, *(one.step + 1 for one in turns)]))],
        "final": {},
        "last_observations": {},
        "terminated": True,
        "unfinished": frozenset(),
        "truncation": "",
        "failure": None,
        "parts": {},
    }
    return Episode(**{**values, **changes})
