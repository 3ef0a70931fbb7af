"""Comparisons with RLax: critics of normalised returns (PopArt)."""

from __future__ import annotations

import jax.numpy as jnp
import rlax
import torch
from published.cases import SINGLE, Case, Comparison
from published.ours import beta, buffers, moments
from torch import Tensor

from ippo_cli.algorithms.return_moments import ReturnMoments
from ippo_cli.formulas import rescale_output


def layers(c: Case) -> tuple[Tensor, Tensor, tuple[float, float], tuple[float, float]]:
    """Weight `[1, R]` and bias `[1]` of an output layer, and mean and standard deviation before and after a change."""
    return c.values[:1], c.new_values[:1, 0], (float(c.score[0]), c.low), (float(c.score[1]), c.cap)


def rescale_layer(c: Case) -> tuple[Tensor, Tensor]:
    return rescale_output(*layers(c))


def their_rescaled(c: Case) -> tuple[Tensor, Tensor]:
    weight, bias, *moments = layers(c)
    before, after = (
        rlax.PopArtState(jnp.array([mean]), jnp.array([std]), jnp.array([std**2 + mean**2])) for mean, std in moments
    )
    found = rlax.pop({"w": jnp.array(weight.T.numpy()), "b": jnp.array(bias.numpy())}, before, after)
    return torch.tensor(found["w"].tolist()).T, torch.tensor(found["b"].tolist())


def their_moments(c: Case) -> tuple[Tensor, ...]:
    """RLax adds the steps of all returns, so that a step of `1 - beta` is divided by their number here."""
    state = rlax.PopArtState(jnp.zeros(1), jnp.ones(1), jnp.ones(1))
    found = []
    for returns in buffers(c):
        targets = jnp.array(returns.numpy(), dtype=jnp.float32)
        indices = jnp.zeros(len(targets), dtype=jnp.int32)
        state = rlax.art(state, targets, indices, (1 - beta(c)) / len(targets), 1e-4, 1e6)
        found.append((float(state.shift[0]), float(state.scale[0])))
    return torch.tensor(found, dtype=torch.float64).unbind(1)


def begun_at_zero(c: Case) -> ReturnMoments:
    """Moments with the weight of infinitely many buffers of mean 0 and mean square 1."""
    weight = 1 / (1 - beta(c))
    return ReturnMoments(weight=weight, square_sum=weight)


COMPARISONS = (
    Comparison(
        what="PopArt, output layer after a change of the moments",
        ours=rescale_layer,
        theirs=their_rescaled,
        tolerance=SINGLE,
    ),
    Comparison(
        what="PopArt, mean and standard deviation of returns over three buffers",
        ours=moments(),
        theirs=their_moments,
        tolerance=SINGLE,
        known="averages begin at mean 0 and mean square 1; ours are debiased",
        translated=moments(begun_at_zero),
    ),
)
