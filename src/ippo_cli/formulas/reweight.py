"""Policy filtration: resample the training rows by their scores."""

from __future__ import annotations

import torch
from torch import Tensor

from ippo_cli.formulas.shapes import Labels, Rows

METHODS = ("pow", "max_min", "max_random")


@torch.no_grad()
def reweight(score: Rows, *, method: str, power: float, generator: torch.Generator | None) -> Labels:
    """Row indices `[B]`, sampled with replacement in proportion to a weight of each row's score `[B]`.

    `pow`: `|s|^power`. `max_min`: 1 at the largest and the smallest score, else 0. `max_random`: 0.4 at the largest,
    else 0.1. Weights that are all 0 count as equal. `score` is the global batch, sampled after the advantages are
    computed; every field of a row moves with its index. Sampling uses the generator's device, so that a CPU generator
    gives the same rows everywhere; a score that is not finite raises `ValueError`.

    Source: PF-PPO (Shen et al. 2024, arXiv 2409.06957).
    """
    if method not in METHODS:
        raise ValueError(f"method={method}; must be one of {' '.join(METHODS)}")
    if not power >= 0:
        raise ValueError(f"power={power}; must be 0 or more: use 2.0")
    if not score.isfinite().all():
        raise ValueError("score holds a NaN or an infinity; exclude the rows with a failed reward before sampling")
    if score.numel() == 0:
        return torch.zeros(0, dtype=torch.long, device=score.device)
    weights = _row_weights(score.double(), method, power)
    if not weights.any():
        weights = torch.ones_like(weights)
    device = score.device if generator is None else generator.device
    indices = torch.multinomial(weights.to(device), score.shape[0], replacement=True, generator=generator)
    return indices.to(score.device)


def _row_weights(score: Tensor, method: str, power: float) -> Tensor:
    if method == "pow":
        size = score.abs()
        return (size / size.max().clamp(min=torch.finfo(size.dtype).tiny)) ** power  # only proportions count
    largest = score == score.max()
    if method == "max_min":
        return (largest | (score == score.min())).double()
    return torch.where(largest, 0.4, 0.1).double()
