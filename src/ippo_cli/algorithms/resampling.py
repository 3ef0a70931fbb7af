"""PF-PPO: draws of the rows of a buffer by their scores."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from ippo_cli.config.schema import Reweight, ReweightConfig
from ippo_cli.engine import distributed
from ippo_cli.formulas import reweight


def draw_sample_counts(
    score: Tensor, trained: Tensor, index: Tensor, settings: ReweightConfig, *, stream: str
) -> Tensor:
    """PF-PPO's draw count of each row, `[B]`, drawn over the global buffer; 1 for rows excluded from training.

    `stream` and the buffer's first sample index determine the random numbers.
    """
    if settings.method is Reweight.none:
        return torch.ones_like(score, dtype=torch.long)
    scores, trainable, index = (distributed.all_gather_rows(part) for part in (score, trained, index))
    name = f"{stream}/{int(index[0])}"
    seed = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=7).digest(), "little")
    drawn = reweight(
        scores[trainable],
        method=settings.method.value,
        power=0.0 if settings.power is None else settings.power,
        generator=torch.Generator().manual_seed(seed),
    )
    counts = torch.ones_like(scores, dtype=torch.long)
    counts[trainable] = torch.bincount(drawn, minlength=int(trainable.sum()))
    return counts[distributed.local_row_slice(score)]
