"""From episodes to rows: one agent's part of each, padded, with holes where others spoke."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ippo_cli.types import Episode, Rollout, Turn


def to_rows(episodes: Sequence[Episode], agent: str, *, device: torch.device, filtered: bool) -> Rollout:
    """Row b is the agent's part of episode b; one that never spoke has an empty mask.

    A row begins with the first prompt. Its response columns hold every completion and, masked out, what the agent read
    between two of them and at the end. `filtered` says whether tokens were drawn from something else than the policy.
    """
    rows = [_Row(episode, agent) for episode in episodes]
    prompts = [row.prompt for row in rows]
    responses = [row.ids for row in rows]
    mask = _right([row.mask for row in rows], torch.bool)
    logprobs = _right([row.logprobs for row in rows], torch.float32).to(device)
    behavior = _right([row.behavior_logprobs for row in rows], torch.float32).to(device) if filtered else logprobs
    prompt_ids, prompt_mask = _left(prompts)
    return Rollout(
        prompt_ids=prompt_ids.to(device),
        prompt_mask=prompt_mask.to(device),
        response_ids=_right(responses, torch.long).to(device),
        response_mask=mask.to(device),
        turn=_right([row.turn for row in rows], torch.long, empty=-1).to(device),
        length=torch.tensor([len(response) for response in responses], dtype=torch.long, device=device),
        logprobs=logprobs,
        behavior_logprobs=behavior,
        finished=torch.tensor([row.finished for row in rows], dtype=torch.bool, device=device),
        texts=[row.text for row in rows],
    )


class _Row:
    """The columns of one row, as lists of equally long parts."""

    def __init__(self, episode: Episode, agent: str) -> None:
        turns = episode.of(agent)
        self.finished = episode.terminated and agent not in episode.unfinished
        self.text = turns[-1].completion.text if turns else ""
        # An agent without a turn reads one token, whichever: a model cannot read nothing.
        self.prompt = torch.tensor(turns[0].prompt if turns else [0], dtype=torch.long)
        parts: list[tuple[Tensor, Tensor, Tensor, int]] = []
        for number, turn in enumerate(turns):
            if number:
                parts.append(_hole(_between(turns[number - 1], turn.prompt)))
            said = turn.completion
            parts.append((said.ids, said.logprobs, said.behavior_logprobs, number))
        if turns and agent in episode.final:
            parts.append(_hole(_between(turns[-1], episode.final[agent])))
        self.ids = _joined([ids for ids, _, _, _ in parts], torch.long)
        self.logprobs = _joined([logprobs for _, logprobs, _, _ in parts], torch.float32)
        self.behavior_logprobs = _joined([behavior for _, _, behavior, _ in parts], torch.float32)
        self.turn = _joined([torch.full((len(ids),), number) for ids, _, _, number in parts], torch.long)
        self.mask = self.turn >= 0


def _between(before: Turn, prompt: Sequence[int]) -> Tensor:
    """What an agent read after its turn before it wrote again. Raises `ValueError` where that rewrites the past."""
    known = before.prompt + before.completion.ids.tolist()
    if list(prompt[: len(known)]) != known:
        raise ValueError(f"a later prompt of {before.agent} does not begin with what was read and written before")
    return torch.tensor(prompt[len(known) :], dtype=torch.long)


def _hole(ids: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    zeros = torch.zeros(len(ids))
    return ids, zeros, zeros, -1


def _joined(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    if len(parts) == 1:
        return parts[0]
    return torch.cat([torch.empty(0, dtype=dtype), *parts])


def _right(rows: Sequence[Tensor], dtype: torch.dtype, *, empty: int = 0) -> Tensor:
    """Rows of unlike lengths as `[B, R]`, padded on the right; R is at least 1."""
    padded = torch.full((len(rows), max([1, *map(len, rows)])), empty, dtype=dtype)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded


def _left(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows of unlike lengths as `[B, P]`, padded on the left, and where they are."""
    width = max([1, *map(len, rows)])
    padded = torch.zeros(len(rows), width, dtype=torch.long)
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for number, row in enumerate(rows):
        padded[number, width - len(row) :] = row
        mask[number, width - len(row) :] = True
    return padded, mask
