"""Comparisons with TorchRL: moments by which a critic's returns are normalised."""

from __future__ import annotations

import torch
from published.cases import SINGLE, Case, Comparison
from published.ours import beta, buffers, moments
from torch import Tensor
from torchrl.modules import PopArtValueNorm


def their_moments(c: Case) -> tuple[Tensor, Tensor]:
    norm = PopArtValueNorm(beta=beta(c))
    found = []
    for returns in buffers(c):
        norm.update(returns[:, None].float())
        found.append((norm.denormalize(torch.zeros(1)).item(), norm.scale().item()))
    means, stds = torch.tensor(found, dtype=torch.float64).unbind(1)
    return means, stds


COMPARISONS = (
    Comparison(
        what="PopArt, debiased mean and standard deviation of returns over three buffers",
        ours=moments(),
        theirs=their_moments,
        tolerance=SINGLE,
    ),
)
