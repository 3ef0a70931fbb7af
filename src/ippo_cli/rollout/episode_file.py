"""Collected episodes in a file of a checkpoint: everything that scoring and training read, equal to the bit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ippo_cli.tasks.messages import MessagesText
from ippo_cli.tasks.model_call import ModelCall
from ippo_cli.types import Batch, Completion, Episode, Turn


class Collection(Protocol):
    """Collected episodes of one rank."""

    @property
    def iterations(self) -> Mapping[str, Mapping[int, int]]: ...

    @property
    def seconds(self) -> float: ...

    @property
    def environment_seconds(self) -> float: ...

    def wait(self) -> list[Episode]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCollection:
    """Episodes that were collected before a checkpoint; has the methods of `BackgroundCollection`."""

    episodes: list[Episode]
    iterations: Mapping[str, Mapping[int, int]]  # by agent and version of its weights: the updates before them
    seconds: float  # duration of the collection
    environment_seconds: float

    def wait(self, report: object = None) -> list[Episode]:
        """The episodes."""
        return self.episodes

    def abandon(self) -> None:
        """Nothing to stop."""

    def transfer_weights(self, iteration: int) -> None:
        """Nothing to continue."""


def write_collection(path: Path, collection: Collection) -> None:
    """Write the episodes of one rank. Their examples are not stored: the schedule has them."""
    stored = {
        "iterations": collection.iterations,
        "seconds": collection.seconds,
        "environment_seconds": collection.environment_seconds,
        "episodes": [episode_to_json(episode) for episode in collection.wait()],
    }
    path.write_text(json.dumps(stored))


def read_collection(paths: Sequence[Path], batch: Batch) -> StoredCollection:
    """Read the episodes of a batch from the files of all ranks that wrote them.

    Raises `ValueError` if an episode of the batch is missing or has another example.
    """
    stored = [json.loads(path.read_text()) for path in paths]
    by_index = {episode["index"]: episode for part in stored for episode in part["episodes"]}
    indices = batch.index.tolist()
    if missing := [index for index in indices if index not in by_index]:
        raise ValueError(f"has no episode of sample {missing[0]}, which the task's next batch has")
    return StoredCollection(
        episodes=[
            episode_from_json(by_index[index], example) for index, example in zip(indices, batch.examples, strict=True)
        ],
        iterations={
            agent: {int(version): iteration for version, iteration in labels.items()}
            for agent, labels in stored[0]["iterations"].items()
        },
        seconds=stored[0]["seconds"],
        environment_seconds=stored[0]["environment_seconds"],
    )


def episode_to_json(episode: Episode) -> dict[str, Any]:
    """An episode without its example as values of JSON."""
    return {
        "index": episode.index,
        "turns": [_turn_to_json(turn) for turn in episode.turns],
        "rewards": [dict(rewards) for rewards in episode.rewards],
        "final": dict(episode.final),
        "last_observations": {agent: _text_to_json(text) for agent, text in episode.last_observations.items()},
        "terminated": episode.terminated,
        "unfinished": sorted(episode.unfinished),
        "ended": sorted(episode.ended),
        "truncation": episode.truncation,
        "failure": None if episode.failure is None else [type(episode.failure).__name__, str(episode.failure)],
        "parts": dict(episode.parts),
        "roles": dict(episode.roles),
    }


def episode_from_json(stored: Mapping[str, Any], example: Mapping[str, Any]) -> Episode:
    """An episode from `episode_to_json`, equal to the bit."""
    failure = stored["failure"]
    return Episode(
        example=example,
        index=stored["index"],
        turns=[_turn_from_json(turn) for turn in stored["turns"]],
        rewards=stored["rewards"],
        final=stored["final"],
        last_observations={agent: _text_from_json(text) for agent, text in stored["last_observations"].items()},
        terminated=stored["terminated"],
        unfinished=frozenset(stored["unfinished"]),
        ended=frozenset(stored["ended"]),
        truncation=stored["truncation"],
        # An exception of the same name and text, for messages; its class may be that of a user's module.
        failure=None if failure is None else type(failure[0], (RuntimeError,), {})(failure[1]),
        parts=stored["parts"],
        roles=stored.get("roles", {}),  # absent in files of earlier versions
    )


def _turn_to_json(turn: Turn) -> dict[str, Any]:
    completion = turn.completion
    shares = completion.behavior_logprobs is completion.logprobs
    return {
        "agent": turn.agent,
        "step": turn.step,
        "observation": _text_to_json(turn.observation),
        "prompt": turn.prompt,
        "ids": completion.ids.tolist(),
        "logprobs": completion.logprobs.tolist(),  # exact: Python's floats have more digits than float32
        "behavior_logprobs": None if shares else completion.behavior_logprobs.tolist(),
        "text": completion.text,
        "answer": turn.answer,
        "finished": completion.finished,
        "versions": None if completion.versions is None else completion.versions.tolist(),
    }


def _turn_from_json(stored: Mapping[str, Any]) -> Turn:
    logprobs = torch.tensor(stored["logprobs"], dtype=torch.float32)
    behavior, versions = stored["behavior_logprobs"], stored["versions"]
    return Turn(
        agent=stored["agent"],
        step=stored["step"],
        observation=_text_from_json(stored["observation"]),
        prompt=stored["prompt"],
        answer=stored.get("answer"),  # absent in files of earlier versions
        completion=Completion(
            ids=_integers(stored["ids"]),
            logprobs=logprobs,
            behavior_logprobs=logprobs if behavior is None else torch.tensor(behavior, dtype=torch.float32),
            text=stored["text"],
            finished=stored["finished"],
            versions=None if versions is None else _integers(versions),
        ),
    )


def _text_to_json(text: str) -> Any:
    if isinstance(text, ModelCall):
        return {"call": list(text.messages)}
    return text.messages if isinstance(text, MessagesText) else str(text)


def _text_from_json(stored: Any) -> str:
    if isinstance(stored, dict):
        return ModelCall(stored["call"])
    return stored if isinstance(stored, str) else MessagesText(stored)


def _integers(numbers: Sequence[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.long)
