"""Rows of episodes: the columns of turns and of the final observation."""

from __future__ import annotations

import torch

from ippo_cli.rollout.rows import build_rollout
from ippo_cli.types import Completion, Episode, Turn


def turn(step: int, prompt: list[int], ids: list[int]) -> Turn:
    numbers = torch.zeros(len(ids))
    completion = Completion(ids=torch.tensor(ids), logprobs=numbers, behavior_logprobs=numbers, text="", finished=True)
    return Turn(agent="a", step=step, observation="", prompt=prompt, completion=completion)


def test_final_observation_follows_the_last_turn() -> None:
    episode = Episode(
        example={},
        index=0,
        turns=[turn(0, [1], [2, 3]), turn(1, [1, 2, 3, 4], [5])],
        rewards=[],
        final={"a": [1, 2, 3, 4, 5, 6, 7]},
        last_observations={"a": ""},
        terminated=False,
        unfinished=frozenset(),
        ended=frozenset(),
        truncation="turns",
        failure=None,
        parts={},
    )
    rollout = build_rollout([episode], "a", device=torch.device("cpu"), filtered=False)
    assert rollout.prompt_ids.tolist() == [[1]]
    assert rollout.response_ids.tolist() == [[2, 3, 4, 5, 6, 7]]
    assert rollout.turn.tolist() == [[0, 0, -1, 1, -1, -1]]
    assert (rollout.detached, rollout.finished.tolist()) == ([[]], [False])
