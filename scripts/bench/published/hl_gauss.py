"""Comparisons with hl-gauss-pytorch: critics with values as distributions over bins."""

from __future__ import annotations

from dataclasses import replace

from hl_gauss_pytorch import HLGaussLoss
from published.cases import SINGLE, VOCABULARY, Case, Comparison, Side, graded
from torch import Tensor
from torch.special import ndtr

from ippo_cli.formulas import ValueBins, bin_probabilities, expected_values, hl_gauss_loss

SIGMA = 0.75  # in bin widths


def bins(c: Case) -> ValueBins:
    return ValueBins(VOCABULARY, -c.cap, c.cap, SIGMA)


def their_loss(c: Case, *, clamp: bool = True) -> HLGaussLoss:
    return HLGaussLoss(
        -c.cap, c.cap, VOCABULARY, sigma_to_bin_ratio=SIGMA, clamp_to_range=clamp, warn_out_of_range=False
    )


def inside(c: Case) -> Case:
    """Return the case with returns inside the range of the bins."""
    return replace(c, returns=c.returns.clamp(-c.cap, c.cap))


def loss(c: Case) -> tuple[Tensor, Tensor]:
    return graded(lambda logits: hl_gauss_loss(logits, c.returns, bins(c)), c.logits)


def their_values(c: Case) -> tuple[Tensor, Tensor]:
    return graded(lambda logits: their_loss(c)(logits, c.returns, reduction="none"), c.logits)


def compute_unlimited_probabilities(c: Case) -> Tensor:
    """Our probabilities of bins, without a limit of the targets; their sum is divided by at least 1e-10, as of erf."""
    edges = bins(c).edges(c.returns)
    cumulative = ndtr((edges - c.returns[..., None]).double() / (SIGMA * bins(c).width))
    mass = cumulative[..., 1:] - cumulative[..., :-1]
    return (mass / mass.sum(dim=-1, keepdim=True).clamp(min=0.5e-10)).to(c.returns.dtype)


def their_probabilities(*, clamp: bool) -> Side:
    return lambda c: their_loss(c, clamp=clamp).transform_to_probs(c.returns)


COMPARISONS = (
    Comparison(
        what="HL-Gauss, probabilities of bins, targets limited to the range",
        ours=lambda c: bin_probabilities(c.returns, bins(c)),
        theirs=their_probabilities(clamp=True),
        tolerance=SINGLE,
    ),
    Comparison(
        what="HL-Gauss, probabilities of bins",
        ours=lambda c: bin_probabilities(c.returns, bins(c)),
        theirs=their_probabilities(clamp=False),
        tolerance=SINGLE,
        known="by default targets are not limited to the range, and far outside sums are below 1; ours are limited",
        translated=compute_unlimited_probabilities,
    ),
    Comparison(what="HL-Gauss, loss per value, and gradient", ours=loss, theirs=their_values, tolerance=SINGLE),
    Comparison(
        what="HL-Gauss, value of logits, and gradient",
        ours=lambda c: graded(lambda logits: expected_values(logits, bins(c)), c.logits),
        theirs=lambda c: graded(their_loss(c), c.logits),
        tolerance=SINGLE,
    ),
)
