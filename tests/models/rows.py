"""Rollouts of given tokens."""

from __future__ import annotations

import torch

from ippo_cli.types import DetachedTurn, Rollout


def rollout(
    prompts: list[list[int]],
    responses: list[list[int]],
    masks: list[list[int]],
    pad: int = 0,
    detached: list[list[DetachedTurn]] | None = None,
) -> Rollout:
    """Left-padded prompts and right-padded responses of the given tokens; `pad` is the padding id."""
    wide, long = max(map(len, prompts)), max(1, *map(len, responses))
    prompt_ids = torch.full((len(prompts), wide), pad)
    response_ids = torch.full((len(prompts), long), pad)
    prompt_mask = torch.zeros(len(prompts), wide, dtype=torch.bool)
    response_mask = torch.zeros(len(prompts), long, dtype=torch.bool)
    for row, (prompt, response, mask) in enumerate(zip(prompts, responses, masks, strict=True)):
        prompt_ids[row, wide - len(prompt) :] = torch.tensor(prompt)
        prompt_mask[row, wide - len(prompt) :] = True
        response_ids[row, : len(response)] = torch.tensor(response, dtype=torch.long)
        response_mask[row, : len(response)] = torch.tensor(mask, dtype=torch.bool)
    zeros = torch.zeros(response_ids.shape)
    return Rollout(
        prompt_ids=prompt_ids,
        prompt_mask=prompt_mask,
        response_ids=response_ids,
        response_mask=response_mask,
        turn=torch.where(response_mask, 0, -1),
        length=torch.tensor([len(response) for response in responses]),
        logprobs=zeros,
        behavior_logprobs=zeros,
        finished=torch.ones(len(prompts), dtype=torch.bool),
        texts=[""] * len(prompts),
        detached=detached or [],
    )


def everything(made: Rollout) -> torch.Tensor:
    return torch.arange(len(made.texts))
