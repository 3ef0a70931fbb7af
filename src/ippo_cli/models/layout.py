"""From padded prompts and responses to the tokens that a model reads, in batches of a token budget."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ippo_cli.models.packing import Packing, pack
from ippo_cli.types import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Prompt and response of each row without the padding between them: packed, or right-padded to the longest row.

    Nothing real stands behind padding, so causal attention needs no mask. ``state[:, t]`` is the place, among all
    tokens read, whose output speaks about response token ``t``: the last one *before* it. This is the one place where
    that shift is made.
    """

    input_ids: Tensor  # [b, L] int64; [1, N] when packed
    state: Tensor  # [b, R + 1] int64, into input_ids.flatten(): entry t is the state before token t, R that after all
    response_ids: Tensor  # [b, R] int64
    response_mask: Tensor  # [b, R] bool
    lengths: Tensor  # [b] int64: response columns in use
    packing: Packing | None


def build_sequences(rollout: Rollout, rows: Tensor, *, packed: bool, final: bool = True) -> Sequences:
    """The given rows as a model reads them; `R` is trimmed to their longest response.

    Without `final` the last action token is not read: no state but the one after it needs it.
    """
    prompt_mask = rollout.prompt_mask[rows]
    lengths = rollout.lengths[rows]
    width = max(int(lengths.max()), 1)
    response_ids, response_mask = rollout.response_ids[rows, :width], rollout.response_mask[rows, :width]
    columns = torch.arange(width, device=rows.device)
    real = torch.cat([prompt_mask, columns < (lengths if final else lengths - 1)[:, None]], dim=1)
    ids = torch.cat([rollout.prompt_ids[rows], response_ids], dim=1)
    counts = real.sum(dim=1)
    arranged = _packed if packed else _padded
    input_ids, starts, packing = arranged(ids, real, counts)
    state = prompt_mask.sum(dim=1, keepdim=True) - 1 + torch.arange(width + 1, device=rows.device)
    return Sequences(
        input_ids=input_ids,
        state=starts[:, None] + torch.minimum(state, counts[:, None] - 1),
        response_ids=response_ids,
        response_mask=response_mask,
        lengths=lengths,
        packing=packing,
    )


def _packed(ids: Tensor, real: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Packing]:
    """Tokens `[1, N]`, longest row first, the place of each row's first, and how they come apart."""
    order = torch.sort(counts, descending=True, stable=True).indices
    ends = counts[order].cumsum(0)
    starts = torch.empty_like(counts).scatter_(0, order, ends - counts[order])
    return ids[order][real[order]][None], starts, pack(counts[order].tolist(), ids.device)


def _padded(ids: Tensor, real: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, None]:
    """Tokens `[b, L]`, zeros after each row, and the place of each row's first."""
    order = torch.sort(~real, dim=1, stable=True).indices
    total = int(counts.max())
    return (ids * real).gather(1, order)[:, :total], torch.arange(len(ids), device=ids.device) * total, None


def token_budget_batches(lengths: Tensor, budget: int, *, packed: bool) -> list[Tensor]:
    """Row numbers in batches of similar length, longest first, that stay within `budget` tokens.

    Padded rows count as long as their batch's longest. A single row longer than the budget is a batch of its own.
    """
    order = torch.sort(lengths, descending=True, stable=True).indices.tolist()
    sizes = lengths.tolist()
    batches: list[list[int]] = []
    room = 0
    for row in order:
        # Longest first: the first row of a batch sets its width.
        cost = sizes[row] if packed or not batches else sizes[batches[-1][0]]
        if batches and cost <= room:
            batches[-1].append(row)
            room -= cost
        else:
            batches.append([row])
            room = budget - sizes[row]
    return [torch.tensor(batch, dtype=torch.long, device=lengths.device) for batch in batches]
