"""HL-Gauss: values as a categorical distribution over bins, regressed by cross-entropy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ippo_cli.formulas.masked import as_real
from ippo_cli.formulas.shapes import Binned, Real


@dataclass(frozen=True, slots=True)
class ValueBins:
    """Bins of equal width over a range of values; `sigma`: standard deviation of a target, in bin widths."""

    count: int
    low: float
    high: float
    sigma: float = 0.75

    def __post_init__(self) -> None:
        if not (self.count >= 2 and self.low < self.high and self.sigma > 0):
            raise ValueError(f"{self}; needs count >= 2, low < high and sigma > 0")

    @property
    def width(self) -> float:
        return (self.high - self.low) / self.count

    def edges(self, like: Tensor) -> Tensor:
        """Limits of the bins, `[count + 1]`, with dtype and device of `like`."""
        return torch.linspace(self.low, self.high, self.count + 1, dtype=like.dtype, device=like.device)


def bin_probabilities(targets: Real, bins: ValueBins) -> Binned:
    """Probability of each bin, `[...] -> [..., K]`: mass of a normal distribution around the target in the bin.

    `p_k = (Phi((e_{k+1} - y) / s) - Phi((e_k - y) / s)) / (Phi((e_K - y) / s) - Phi((e_0 - y) / s))`, with edges `e_k`,
    `s = sigma * width` and the target `y` clamped to the range.

    Three bins over [0, 3], sigma 0.75: y = 1.5 gives .2407 .5186 .2407.

    Source: Farebrother et al. 2024 (arXiv 2403.03950), eq. 4 and appendix A; Imani and White 2018 (1806.04613).
    """
    y = as_real(targets).clamp(bins.low, bins.high)
    z = (bins.edges(y) - y[..., None]) / (bins.sigma * bins.width)
    cumulative = torch.special.ndtr(z)
    mass = cumulative[..., 1:] - cumulative[..., :-1]
    return mass / (cumulative[..., -1:] - cumulative[..., :1])


def hl_gauss_loss(logits: Binned, targets: Real, bins: ValueBins) -> Real:
    """Cross-entropy of the logits `[..., K]` against the bins' probabilities of the targets `[...]`.

    Two bins, logits 0 0: log 2 for every target.
    """
    return -(bin_probabilities(targets, bins) * F.log_softmax(as_real(logits), dim=-1)).sum(dim=-1)


def expected_values(logits: Binned, bins: ValueBins) -> Real:
    """Mean of the bins' centres under the logits, `[..., K] -> [...]`. Equal logits give the middle of the range."""
    logits = as_real(logits)
    edges = bins.edges(logits)
    return F.softmax(logits, dim=-1) @ ((edges[1:] + edges[:-1]) / 2)
