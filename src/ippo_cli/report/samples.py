"""Indexes sampled episodes and embeds sample files: one chunk of texts and one of token values per file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ippo_cli.report.chunks import encode_json
from ippo_cli.runs.records import RunRecord, SampleFile

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


@dataclass
class EmbeddedSamples:
    """Chunks by name, the index of episodes, and what was left out."""

    index: EpisodeIndex = field(default_factory=EpisodeIndex)
    files: list[dict[str, Any]] = field(default_factory=list)  # run, iteration, mode; names of chunks: text, tokens
    chunks: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    size: int = 0  # bytes of the chunks


def embed_samples(runs: Sequence[RunRecord], limit: int) -> EmbeddedSamples:
    """Encode the samples of all runs in at most `limit` bytes.

    Token values of the oldest files are left out first, then texts of the oldest files.
    """
    found = EmbeddedSamples()
    listed = [(run, file) for run, record in enumerate(runs) for file in record.sample_files]
    found.files = [
        {"run": run, "iteration": file.iteration, "mode": file.mode, "text": None, "tokens": None}
        for run, file in listed
    ]
    newest_first = sorted(range(len(listed)), key=lambda number: _age(runs, *listed[number]))
    sizes = [_group_size(record) for record in runs]
    with_tokens = [
        number
        for number in newest_first
        if _embed_file(found, number, listed[number][1], limit, sizes[listed[number][0]])
    ]
    _drop_oldest(found, "tokens", newest_first, limit)
    _drop_oldest(found, "text", newest_first, limit)
    _note_missing(found, "text", "Texts", newest_first)
    _note_missing(found, "tokens", "Token values", with_tokens)
    return found


def _age(runs: Sequence[RunRecord], run: int, file: SampleFile) -> tuple[int, bool]:
    """Iterations before the newest file of the run; evaluations are newer than training samples of their iteration."""
    return runs[run].sample_files[-1].iteration - file.iteration, file.mode == "train"


def _group_size(run: RunRecord) -> int:
    """Responses to one prompt in training, at least 2; 2 if unknown."""
    size = run.config_group("rollout").get("num_generations")
    return max(size, 2) if isinstance(size, int) else 2


def _embed_file(found: EmbeddedSamples, number: int, file: SampleFile, limit: int, group_size: int) -> bool:
    """Encode texts, and token values while there is space for them; returns whether the file has token values."""
    episodes = file.episodes()
    found.index.add_file(number, episodes, group_size)
    _add_chunk(found, number, "text", [_without_tokens(episode) for episode in episodes])
    has_tokens = any(_has_tokens(episode) for episode in episodes)
    if has_tokens and found.size <= limit:
        _add_chunk(found, number, "tokens", [_token_values(episode) for episode in episodes])
    return has_tokens


def _add_chunk(found: EmbeddedSamples, number: int, kind: str, value: Any) -> None:
    name = f"{kind}-{number}"
    found.files[number][kind] = name
    found.chunks[name] = encode_json(value)
    found.size += len(found.chunks[name])


def _drop_oldest(found: EmbeddedSamples, kind: str, newest_first: Sequence[int], limit: int) -> None:
    """Drop chunks of a kind until the rest has at most `limit` bytes."""
    for number in reversed(newest_first):
        if found.size <= limit:
            return
        if name := found.files[number][kind]:
            found.size -= len(found.chunks.pop(name))
            found.files[number][kind] = None


def _note_missing(found: EmbeddedSamples, kind: str, title: str, numbers: Sequence[int]) -> None:
    missing = sum(found.files[number][kind] is None for number in numbers)
    if missing:
        found.notes.append(
            f"{title} of the oldest {missing} of {len(numbers)} sample files are left out, because the page has a size "
            "limit; the run's folder has them in samples/."
        )


def _has_tokens(episode: Mapping[str, Any]) -> bool:
    return any(turn.get("tokens") for turn in episode.get("turns") or [])


def _token_values(episode: Mapping[str, Any]) -> list[Any]:
    """The token values of each turn, or None."""
    return [turn.get("tokens") for turn in episode.get("turns") or []]


def _without_tokens(episode: Mapping[str, Any]) -> dict[str, Any]:
    turns = [{key: value for key, value in turn.items() if key != "tokens"} for turn in episode.get("turns") or []]
    # `agents` repeats observations and responses of turns.
    agents = {
        name: {key: value for key, value in row.items() if key not in ("prompt", "response")}
        for name, row in (episode.get("agents") or {}).items()
    }
    return dict(episode) | {"turns": turns, "agents": agents}
