"""Which of an agent's turns a payment belongs to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from ippo_cli.types import Episode


def num_steps(episode: Episode) -> int:
    """Steps of an episode: those that its environment has answered, and one that an agent has only begun."""
    return max([len(episode.rewards), *(turn.step + 1 for turn in episode.turns)])


def turn_steps(episode: Episode, agent: str) -> list[int]:
    """The step of each of an agent's turns."""
    return [turn.step for turn in episode.turns if turn.agent == agent]


def turn_for_step(steps: Sequence[int], step: int) -> int:
    """Which of the turns that were at `steps` is paid for what fell at `step`: the last one by then, else the first.

    Turns at the steps 1 and 3: what falls at 0, 1 or 2 pays turn 0, what falls at 3 or later turn 1.
    """
    return max(bisect_right(steps, step) - 1, 0)
