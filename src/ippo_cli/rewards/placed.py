"""Rewards on some of the ranks: episodes go to these ranks, and their numbers return."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from ippo_cli.engine import distributed
from ippo_cli.engine.rank_group import RankGroup
from ippo_cli.rewards.contract import Reward, RewardFunction, select_rows
from ippo_cli.rewards.retry import merge_rewards
from ippo_cli.tasks.schedule import rank_range
from ippo_cli.types import Episode

ATTRIBUTE = "rank_group"  # of a placed reward
ScoreEpisodes = Callable[[Sequence[Episode]], tuple[Reward, Exception | None]]


def place_reward(reward: RewardFunction, group: RankGroup) -> None:
    """Place a reward on some of the ranks."""
    setattr(reward, ATTRIBUTE, group)


def find_reward_group(reward: RewardFunction) -> RankGroup | None:
    """The ranks of a placed reward, also where it is wrapped; None if each rank scores its own episodes."""
    return getattr(inspect.unwrap(reward), ATTRIBUTE, None)


def score_on_group(
    group: RankGroup, episodes: Sequence[Episode], agents: Sequence[str], score: ScoreEpisodes
) -> tuple[Reward, Exception | None]:
    """The numbers of this rank's episodes, from `score` on the ranks of a group. Collective over the world.

    Each rank of the group scores a contiguous part of all ranks' episodes, and returns the failure of its part.
    """
    gathered = distributed.gather_objects(list(episodes))
    everything = [episode for part in gathered for episode in part]
    answer, failure = None, None
    with distributed.synchronize_errors():
        if group.is_member:
            own = rank_range(len(everything), group.rank, group.size)
            with group.activate():
                answer, failure = score([everything[place] for place in own])
    answers = [answer for answer in distributed.gather_objects(answer) if answer is not None]
    first = sum(map(len, gathered[: distributed.rank()]))
    found: list[tuple[list[int], Reward]] = []
    for number, part in enumerate(answers):
        scored = rank_range(len(everything), number, group.size)
        places = [place for place in scored if first <= place < first + len(episodes)]
        if places:
            rows = [place - first for place in places]
            found.append((rows, select_rows(part, [place - scored.start for place in places])))
    return merge_rewards(found, agents, episodes), failure
