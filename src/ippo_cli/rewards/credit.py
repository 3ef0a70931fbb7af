"""Assigns rewards of environment steps to the agents' turns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from ippo_cli.types import Episode


def num_steps(episode: Episode) -> int:
    """The number of steps of an episode, with a last step that the environment did not process."""
    return max([len(episode.rewards), *(turn.step + 1 for turn in episode.turns)])


def turn_steps(episode: Episode, agent: str) -> list[int]:
    """The step of each of an agent's turns."""
    return [turn.step for turn in episode.turns if turn.agent == agent]


def turn_for_step(steps: Sequence[int], step: int) -> int:
    """Index of the turn that receives the reward of `step`: the last turn up to `step`, else the first turn.

    `steps` are the steps of the turns. With turns at steps 1 and 3, rewards of steps 0, 1 and 2 belong to turn 0,
    those of step 3 and later to turn 1.
    """
    return max(bisect_right(steps, step) - 1, 0)
