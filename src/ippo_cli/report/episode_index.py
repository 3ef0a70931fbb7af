"""The index of all sampled episodes: the columns of the page's table, without texts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

FLAGS = ("truncated", "failed", "zero_variance")


class EpisodeIndex:
    """Columns with one entry per episode."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {
            name: [] for name in ("file", "place", "mode", "score", "turns", "chars", "group", "prompt", *FLAGS)
        }
        self.agents: dict[str, list[float | None]] = {}
        self._prompts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.columns["file"])

    def add_file(self, number: int, episodes: Sequence[Mapping[str, Any]], group_size: int = 2) -> None:
        """Add the episodes of sample file `number`. `group_size`: episodes of a whole training group."""
        start = len(self)
        for place, episode in enumerate(episodes):
            self._add_episode(number, place, episode)
        self._number_groups(start)
        self._mark_equal_groups(start, [episode.get("mode") for episode in episodes], group_size)

    def to_data(self) -> dict[str, Any]:
        """The columns in the order of files, for JSON."""
        order = sorted(range(len(self)), key=lambda row: self.columns["file"][row])

        def arrange(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
            return {name: [values[row] for row in order] for name, values in columns.items()}

        return arrange(self.columns) | {"agents": arrange(self.agents)}

    def _add_episode(self, number: int, place: int, episode: Mapping[str, Any]) -> None:
        turns = [turn for turn in episode.get("turns") or [] if isinstance(turn, Mapping)]
        scores = {
            str(name): _number(row.get("score"))
            for name, row in (episode.get("agents") or {}).items()
            if isinstance(row, Mapping)
        }
        known = [value for value in scores.values() if value is not None]
        prompt = self._prompts.setdefault(prompt_key(turns), len(self._prompts))
        row = {
            "file": number,
            "place": place,
            "mode": str(episode.get("mode") or ""),  # train | sampled | greedy
            "score": _round(sum(known) / len(known)) if known else None,
            "turns": len(turns),
            "chars": sum(len(str(turn.get("response") or "")) for turn in turns),
            "group": _group_of(episode, prompt),
            "prompt": prompt,
            "truncated": int(bool(episode.get("truncation")) or any(turn.get("cut") for turn in turns)),
            "failed": int(episode.get("failure") is not None),
            "zero_variance": 0,
        }
        for name in scores.keys() - self.agents.keys():
            self.agents[name] = [None] * len(self)
        for name, values in self.agents.items():
            values.append(scores.get(name))
        for name, value in row.items():
            self.columns[name].append(value)

    def _number_groups(self, start: int) -> None:
        """Number the groups from row `start` on, in each mode from 1: those of the schedule have five digits."""
        known: dict[str, dict[int, int]] = {}
        for row in range(start, len(self)):
            group, numbers = self.columns["group"][row], known.setdefault(self.columns["mode"][row], {})
            if isinstance(group, int):
                self.columns["group"][row] = numbers.setdefault(group, len(numbers) + 1)

    def _mark_equal_groups(self, start: int, modes: Sequence[Any], group_size: int) -> None:
        """Mark episodes from row `start` on if their group has several episodes with scores, all equal for each agent.

        Equal means over agents are not enough: in a game of two, every episode may have the mean 0. Sampled and greedy
        episodes of an evaluation are no group. Of an incomplete training group, the other episodes are unknown.
        """
        groups: dict[Any, list[int]] = {}
        for row in range(start, len(self)):
            groups.setdefault((modes[row - start], self.columns["group"][row]), []).append(row)
        for (mode, _), members in groups.items():
            rows = [row for row in members if self.columns["score"][row] is not None]  # others have failed
            is_complete = mode != "train" or len(members) >= group_size
            scores = {tuple(values[row] for values in self.agents.values()) for row in rows}
            if is_complete and len(rows) > 1 and len(scores) == 1:
                for row in rows:
                    self.columns["zero_variance"][row] = 1


def prompt_key(turns: Sequence[Mapping[str, Any]]) -> str:
    """A text that is equal for episodes about the same example: the first observation of the episode.

    Observations of later agents may contain messages, which differ between samples.
    """
    return json.dumps([turns[0].get("agent"), turns[0].get("observation")]) if turns else ""


def _group_of(episode: Mapping[str, Any], prompt: int) -> int | str:
    """The group of an episode; without one, the number of its prompt (a text, to tell them apart)."""
    group = episode.get("group")
    return group if isinstance(group, int) else f"p{prompt}"


def _number(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return value if is_number else None


def _round(value: float) -> float:
    return float(f"{value:.6g}")
