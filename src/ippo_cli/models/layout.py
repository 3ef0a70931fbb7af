"""From padded prompts and responses to the rows that a model reads, and in batches of a token budget."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ippo_cli.types import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Prompt and response of each row without the padding between them, right-padded to the longest row.

    Nothing real stands behind padding, so causal attention needs no mask. ``state[:, t]`` is the column whose output
    speaks about response token ``t``: the last column *before* it. This is the one place where that shift is made.
    """

    input_ids: Tensor  # [b, L] int64
    state: Tensor  # [b, R + 1] int64: entry t belongs to the state before token t, entry R to the one after the last
    response_ids: Tensor  # [b, R] int64
    response_mask: Tensor  # [b, R] bool
    lengths: Tensor  # [b] int64: response columns in use


def compact(rollout: Rollout, rows: Tensor) -> Sequences:
    """The given rows as a model reads them; `R` is trimmed to their longest response."""
    prompt_mask = rollout.prompt_mask[rows]
    lengths = rollout.lengths[rows]
    width = max(int(lengths.max()), 1)
    response_ids, response_mask = rollout.response_ids[rows, :width], rollout.response_mask[rows, :width]
    columns = torch.arange(width, device=rows.device)
    real = torch.cat([prompt_mask, columns < lengths[:, None]], dim=1)
    ids = torch.cat([rollout.prompt_ids[rows], response_ids], dim=1) * real
    order = torch.sort(~real, dim=1, stable=True).indices
    total = int(real.sum(dim=1).max())
    prompt_lengths = prompt_mask.sum(dim=1, keepdim=True)
    state = prompt_lengths - 1 + torch.arange(width + 1, device=rows.device)
    return Sequences(
        input_ids=ids.gather(1, order)[:, :total],
        state=state.clamp(max=total - 1),
        response_ids=response_ids,
        response_mask=response_mask,
        lengths=lengths,
    )


def token_budget_batches(lengths: Tensor, budget: int) -> list[Tensor]:
    """Row numbers in batches of similar length whose padded size (rows x longest) stays within `budget` tokens.

    A single row longer than the budget is a batch of its own.
    """
    order = torch.sort(lengths, descending=True, stable=True).indices.tolist()
    sizes = lengths.tolist()
    batches: list[list[int]] = []
    for row in order:  # longest first: the first row of a batch sets its width
        if batches and sizes[batches[-1][0]] * (len(batches[-1]) + 1) <= budget:
            batches[-1].append(row)
        else:
            batches.append([row])
    return [torch.tensor(batch, dtype=torch.long, device=lengths.device) for batch in batches]
