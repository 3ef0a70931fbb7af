"""Embeds sample files: one chunk of texts and one of token values per file, within a number of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ippo_cli.report.chunks import encode_json
from ippo_cli.report.episode_index import EpisodeIndex
from ippo_cli.runs.records import RunRecord, SampleFile


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
