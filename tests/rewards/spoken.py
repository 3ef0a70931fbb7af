"""Builds episodes from texts. Tests import this file by its path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ippo_cli.types import Completion, Episode, Turn


def episode(*turns: tuple[Any, ...], **changes: Any) -> Episode:
    """An episode of turns (agent, step, text), optionally with observation, `finished` and number of tokens.

    All rewards are empty; there are as many steps as the turns need.
    """
    values: dict[str, Any] = {
        "example": {},
        "index": 0,
        "turns": [_turn(*one) for one in turns],
        "rewards": [{} for _ in range(max([0, *(step + 1 for _, step, *_ in turns)]))],
        "final": {},
        "last_observations": {},
        "terminated": True,
        "unfinished": frozenset(),
        "ended": frozenset(),
        "truncation": "",
        "failure": None,
        "parts": {},
    }
    return Episode(**{**values, **changes})


def spoken_once(examples: Sequence[Any], texts: Mapping[str, Sequence[str]]) -> list[Episode]:
    """One episode per example in which every agent has one turn at step 0."""
    return [
        episode(*((name, 0, expected[row]) for name, expected in texts.items()), example=example, index=row)
        for row, example in enumerate(examples)
    ]


def _turn(agent: str, step: int, text: str, observation: str = "", finished: bool = True, tokens: int = 0) -> Turn:
    none = torch.zeros(tokens)
    result = Completion(ids=none.long(), logprobs=none, behavior_logprobs=none, text=text, finished=finished)
    return Turn(agent=agent, step=step, observation=observation, prompt=[], completion=result)
