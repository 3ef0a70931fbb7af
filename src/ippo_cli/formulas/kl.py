"""Divergence from the reference policy: per-token estimates, the exact sum, and the adaptive coefficient."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ippo_cli.formulas.logprobs import Head, check_chunking, over_chunks, tempered_log_softmax
from ippo_cli.formulas.masked import as_real
from ippo_cli.formulas.shapes import Hidden, Real, ReferenceHidden, Scalar

KL_ESTIMATORS = ("k1", "abs", "k2", "k3")


def kl_estimate(logprobs: Real, ref_logprobs: Real, *, estimator: str) -> Real:
    """An estimate of KL(pi || ref) from one sampled token each, in the shape of `logprobs`.

    With `d = log pi - log ref`: `k1 = d`, `abs = |d|`, `k2 = d^2 / 2`, `k3 = exp(-d) - 1 + d`, where d is
    clamped to [-20, 20] in k3 and the result to [-10, 10] (so below d = -2.6 and above d = 11 k3 has no gradient). A
    `+` after the name (`"k1+"`) keeps the value and takes k2's gradient, `d * grad log pi`, which is the unbiased
    gradient of the divergence; k1's own is 0 in expectation. d = 0.5 gives .5 .5 .125 .1065.

    Source: Schulman 2020, "Approximating KL Divergence" (joschu.net/blog/kl-approx.html), for k1, k2, k3.
    """
    name, plus = estimator.removesuffix("+"), estimator.endswith("+")
    if name not in KL_ESTIMATORS:
        names = " ".join(KL_ESTIMATORS)
        raise ValueError(f"estimator={estimator}; must be one of {names}, each also with a + for the gradient of k2")
    d = as_real(logprobs) - as_real(ref_logprobs)
    k2 = 0.5 * d.square()
    if name == "k1":
        value = d
    elif name == "abs":
        value = d.abs()
    elif name == "k2":
        value = k2
    else:
        bounded = d.clamp(-20.0, 20.0)
        value = (torch.expm1(-bounded) + bounded).clamp(-10.0, 10.0)
    return value.detach() + (k2 - k2.detach()) if plus else value


def full_kl(
    hidden: Hidden,
    lm_head: Head,
    ref_hidden: ReferenceHidden,
    ref_lm_head: Head,
    *,
    temperature: float,
    chunk_tokens: int,
) -> Real:
    """The exact KL(pi || ref) at each position, `[...]`: `sum_v p_v (log p_v - log q_v)` over the vocabulary.

    `hidden` and `ref_hidden` are `[..., H]` (widths may differ), the heads map `[n, H]` to `[n, V]`, and both policies
    are tempered. Tokens with `p_v = 0` add 0, also where `q_v = 0`. The reference is a constant: no gradient reaches
    it. Chunking, precision, empty input and derivatives as in `selected_logprobs`.

    Source: the definition; its gradient is `p_j (log p_j - log q_j - KL) / temperature` for the logit of token j.
    """
    check_chunking(temperature, chunk_tokens)

    def chunk(rows: Tensor, ref_rows: Tensor) -> tuple[Tensor, ...]:
        with torch.no_grad():
            ref_logits = ref_lm_head(ref_rows)
        return (_FullKL.apply(lm_head(rows), ref_logits, temperature),)

    flat = hidden.reshape(-1, hidden.shape[-1]), ref_hidden.reshape(-1, ref_hidden.shape[-1])
    return over_chunks(chunk, flat, chunk_tokens)[0].view(hidden.shape[:-1])


def adaptive_kl_step(
    coef: float, current_kl: float | Scalar, *, target: float, horizon: float, num_samples: int
) -> float:
    """The KL coefficient after one batch: `coef * (1 + clip(current / target - 1, -0.2, 0.2) * num_samples / horizon)`.

    `current_kl` is the mean over sequences of the per-token mean, `num_samples` the number of sequences in the batch.
    The batch itself is trained with the previous coefficient. coef .1, current 2, target 1, 64 of 640 samples: .102.

    Source: Ziegler et al. 2019 (arXiv 1909.08593), section 2.2.
    """
    if not target > 0:
        raise ValueError(f"target={target}; must be positive: use 6.0, or none for a fixed coefficient")
    if not horizon > 0:
        raise ValueError(f"horizon={horizon}; must be positive: use 10000")
    current = float(current_kl)
    if math.isnan(current):
        raise ValueError(
            "current_kl=nan; the coefficient needs a finite divergence: look for the NaN in the log-probabilities"
        )
    error = min(max(current / target - 1, -0.2), 0.2)
    return float(coef) * (1 + error * num_samples / horizon)


class _FullKL(torch.autograd.Function):
    """KL between two rows of logits `[n, V]`, `[n]`; only the first receives a gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ref_logits: Tensor, temperature: float) -> Tensor:
        difference = tempered_log_softmax(logits, temperature)
        probabilities = difference.exp()
        difference = difference.sub_(tempered_log_softmax(ref_logits, temperature))
        difference.masked_fill_(probabilities == 0, 0.0)
        kl = (probabilities * difference).sum(-1)
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        ctx.save_for_backward(probabilities, difference, kl)
        return kl

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_kl: Tensor) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        probabilities, difference, kl = ctx.saved_tensors
        grad = (difference - kl[:, None]).mul_(probabilities).mul_(grad_kl[:, None] / ctx.temperature)
        return grad.to(ctx.dtype), None, None
