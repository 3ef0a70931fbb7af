"""Embeds sample files: one chunk of texts and one of token values per file, within a number of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ippo_cli.report.chunks import encode_json, total_size
from ippo_cli.report.episode_index import EpisodeIndex
from ippo_cli.runs.records import RunRecord, SampleFile


@dataclass
class EmbeddedSamples:
    """Chunks by name, the index of episodes, and what was left out."""

    index: EpisodeIndex = field(default_factory=EpisodeIndex)
    files: list[dict[str, Any]] = field(default_factory=list)  # run, iteration, mode, episodes; text and tokens: chunks
    chunks: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def embed_samples(runs: Sequence[RunRecord], limit: int) -> EmbeddedSamples:
    """Encode the samples of all runs in at most `limit` bytes.

    Token values of the oldest files are left out first, then texts of the oldest files.
    """
    listed = [(number, file) for number, run in enumerate(runs) for file in run.sample_files]
    found = EmbeddedSamples()
    with_tokens = []
    for number, (run, file) in enumerate(listed):
        episodes = file.episodes()
        found.index.add_file(number, episodes)
        name = f"text-{number}"
        found.chunks[name] = encode_json([_without_tokens(episode) for episode in episodes])
        entry = {"run": run, "iteration": file.iteration, "mode": file.mode, "episodes": len(episodes)}
        found.files.append(entry | {"text": name, "tokens": None})
        if any(_has_tokens(episode) for episode in episodes):
            with_tokens.append(number)
    newest_first = sorted(range(len(listed)), key=lambda number: _age(runs, listed[number]))
    _drop_texts(found, newest_first, limit)
    kept = [number for number in newest_first if number in set(with_tokens) and found.files[number]["text"]]
    _embed_tokens(found, [(number, listed[number][1]) for number in kept], len(with_tokens), limit)
    return found


def _age(runs: Sequence[RunRecord], entry: tuple[int, SampleFile]) -> tuple[int, int]:
    """Iterations before the newest file of the run; evaluations are newer than training samples of their iteration."""
    run, file = entry
    return runs[run].sample_files[-1].iteration - file.iteration, int(file.mode == "train")


def _drop_texts(found: EmbeddedSamples, newest_first: Sequence[int], limit: int) -> None:
    size, dropped = total_size(found.chunks.values()), 0
    for number in reversed(newest_first):
        if size <= limit:
            break
        size -= len(found.chunks.pop(f"text-{number}"))
        found.files[number]["text"] = None
        dropped += 1
    if dropped:
        found.notes.append(
            f"Texts and token values of the oldest {dropped} of {len(found.files)} sample files are left out, because "
            "the page has a size limit; the run's folder has them in samples/."
        )


def _embed_tokens(
    found: EmbeddedSamples, files: Sequence[tuple[int, SampleFile]], files_with_tokens: int, limit: int
) -> None:
    size, kept = total_size(found.chunks.values()), 0
    for number, file in files:
        data = encode_json([_token_values(episode) for episode in file.episodes()])
        size += len(data)
        if size > limit:
            break
        name = f"tokens-{number}"
        found.chunks[name], found.files[number]["tokens"] = data, name
        kept += 1
    if kept < files_with_tokens:
        found.notes.append(
            f"Token values of the oldest {files_with_tokens - kept} of {files_with_tokens} sample files are left out, "
            "because the page has a size limit; the run's folder has them in samples/."
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
