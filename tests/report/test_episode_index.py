"""The index of episodes: scores, flags, groups and prompts."""

from __future__ import annotations

from typing import Any

from ippo_cli.report.samples import EpisodeIndex


def make_episode(scores: dict[str, float | None], observation: str = "2+2=", **more: Any) -> dict[str, Any]:
    turns = [
        {"agent": name, "step": 0, "observation": observation, "response": "four", "cut": False, "score": score}
        for name, score in scores.items()
    ]
    agents = {name: {"score": score} for name, score in scores.items()}
    return {"mode": "train", "agents": agents, "turns": turns, "truncation": "", "failure": None, **more}


def index_of(*files: list[dict[str, Any]]) -> dict[str, Any]:
    index = EpisodeIndex()
    for number, episodes in enumerate(files):
        index.add_file(number, episodes)
    return index.to_data()


def test_score_is_the_mean_over_agents_with_a_score() -> None:
    data = index_of([make_episode({"low": 1.0, "high": 0.0}), make_episode({"low": None, "high": 0.25})])
    assert data["score"] == [0.5, 0.25]
    assert data["agents"] == {"low": [1.0, None], "high": [0.0, 0.25]}
    assert (data["turns"], data["chars"]) == ([2, 2], [8, 8])


def test_agents_that_appear_later_have_no_earlier_scores() -> None:
    data = index_of([make_episode({"low": 1.0})], [make_episode({"high": 0.5})])
    assert data["agents"] == {"low": [1.0, None], "high": [None, 0.5]}


def test_flags() -> None:
    cut = make_episode({"low": 0.0})
    cut["turns"][0]["cut"] = True
    data = index_of([make_episode({"low": 1.0}, truncation="max_turns"), cut, make_episode({"low": None}, failure="x")])
    assert data["truncated"] == [1, 1, 0]
    assert data["failed"] == [0, 0, 1]


def test_groups_with_equal_scores_are_marked_within_a_file() -> None:
    equal, other = make_episode({"low": 1.0}, group=3), make_episode({"low": 0.5}, group=4)
    data = index_of([equal, equal, other, make_episode({"low": 0.0}, group=4)], [equal])
    assert data["zero_variance"] == [1, 1, 0, 0, 0]


def test_equal_means_of_agents_are_not_equal_scores() -> None:
    data = index_of([make_episode({"low": 1.0, "high": -1.0}), make_episode({"low": -1.0, "high": 1.0})])
    assert (data["score"], data["zero_variance"]) == ([0.0, 0.0], [0, 0])


def test_episodes_without_scores_are_in_no_equal_group() -> None:
    failed, known = make_episode({"low": None}, failure="x"), make_episode({"low": 0.5})
    assert index_of([failed, failed])["zero_variance"] == [0, 0]
    assert index_of([failed, known, known])["zero_variance"] == [0, 1, 1]


def test_sampled_and_greedy_episodes_are_no_group() -> None:
    sampled, greedy = (make_episode({"low": 0.5}, group=0) | {"mode": mode} for mode in ("sampled", "greedy"))
    assert index_of([sampled, greedy])["zero_variance"] == [0, 0]


def test_incomplete_groups_are_not_marked() -> None:
    index = EpisodeIndex()
    episodes = [make_episode({"low": 1.0}, group=group) for group in (0, 0, 0, 0, 1, 1)]
    index.add_file(0, episodes, group_size=4)
    assert index.to_data()["zero_variance"] == [1, 1, 1, 1, 0, 0]


def test_groups_are_numbered_and_compared_within_a_mode() -> None:
    sampled, greedy = (make_episode({"low": 1.0}, group=40448, mode=mode) for mode in ("sampled", "greedy"))
    other = make_episode({"low": 0.0}, group=7, mode="sampled")
    data = index_of([sampled, other, greedy], [other, other])
    assert data["mode"] == ["sampled", "sampled", "greedy", "sampled", "sampled"]
    assert data["group"] == [1, 2, 1, 1, 1]
    assert data["zero_variance"] == [0, 0, 0, 1, 1]


def test_episodes_without_group_are_grouped_by_prompt() -> None:
    data = index_of([make_episode({"low": 1.0}, "a"), make_episode({"low": 1.0}, "b"), make_episode({"low": 1.0}, "a")])
    assert data["prompt"] == [0, 1, 0]
    assert data["zero_variance"] == [1, 0, 1]
    assert data["group"] == ["p0", "p1", "p0"]


def test_rows_are_in_the_order_of_files() -> None:
    index = EpisodeIndex()
    index.add_file(1, [make_episode({"low": 1.0})])
    index.add_file(0, [make_episode({"low": 0.0}), make_episode({"low": 0.5})])
    data = index.to_data()
    assert (data["file"], data["place"]) == ([0, 0, 1], [0, 1, 0])
    assert data["agents"]["low"] == [0.0, 0.5, 1.0]


def test_incomplete_episodes_are_rows() -> None:
    data = index_of([{"index": 1}, {"turns": None, "agents": {"low": {"score": float("nan")}}}])
    assert data["score"] == [None, None]
    assert data["turns"] == [0, 0]
