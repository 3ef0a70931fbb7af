"""Log-probabilities of chosen tokens and entropies, from hidden states, without a tensor of logits `[B, R, V]`.

The language-model head runs over `chunk_tokens` tokens at a time, and again in the backward pass (activation
checkpointing), so that the largest tensor is `[chunk_tokens, V]`. The last chunk is first in the backward pass: its
logits are kept, which needs no more memory than to compute them again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from ippo_cli.formulas.shapes import Hidden, Ids, Real


class _Recomputation(threading.local):
    """Whether a backward pass runs a chunk again, in this thread; a context."""

    is_active = False

    def __enter__(self) -> None:
        self.is_active = True

    def __exit__(self, *_: object) -> None:
        self.is_active = False


_recomputation = _Recomputation()

Head = Callable[[Tensor], Tensor]
"""A module (or any callable) from hidden states `[n, H]` to logits `[n, V]`."""

# exp() of anything below is 0 in float32 and float64, so raising a log-probability to it changes no probability, and
# 0 * log(0) becomes 0 instead of NaN.
LOG_ZERO = -1e4


@overload
def selected_logprobs(
    hidden: Hidden,
    lm_head: Head,
    ids: Ids,
    *,
    temperature: float,
    chunk_tokens: int,
    with_entropy: Literal[True] = True,
    keep_last: bool = True,
) -> tuple[Real, Real]: ...
@overload
def selected_logprobs(
    hidden: Hidden,
    lm_head: Head,
    ids: Ids,
    *,
    temperature: float,
    chunk_tokens: int,
    with_entropy: bool,
    keep_last: bool = True,
) -> tuple[Real, Real | None]: ...
def selected_logprobs(
    hidden: Hidden,
    lm_head: Head,
    ids: Ids,
    *,
    temperature: float,
    chunk_tokens: int,
    with_entropy: bool = True,
    keep_last: bool = True,
) -> tuple[Real, Real | None]:
    """Log-probability of each chosen id under the tempered policy, and that policy's entropy.

    `hidden` is `[..., H]` and already aligned: `hidden[..., t, :]` is the state that chooses `ids[..., t]`; `ids` and
    both results are `[...]`. With `z = lm_head(hidden) / temperature`:

        logprob = z[id] - logsumexp(z)        entropy = -sum_v p_v log p_v,  p = softmax(z)

    Half-precision logits are raised to float32 before the temperature and the softmax; float64 stays. Ids are valid
    everywhere, padding included. `with_entropy=False` gives `(logprobs, None)`. An impossible token (logit -inf) adds
    nothing to the entropy. `keep_last=False` computes the last chunk's logits again too, for callers with other logits
    before the backward pass. First derivatives only. No tokens at all is fine: the head still runs, on one row of
    zeros, so that hooks on it (sharded weights) fire on every rank, and the empty result hangs on its graph.

    Source: the definitions; the temperature is part of the policy, as in Schulman et al. 2017 (arXiv 1707.06347),
    where the ratio compares the distributions that are sampled from.
    """
    check_chunking(temperature, chunk_tokens)

    def chunk(rows: Tensor, chosen: Tensor) -> tuple[Tensor, ...]:
        return _SelectedLogprobs.apply(lm_head(rows), chosen, temperature, with_entropy)

    rows = hidden.reshape(-1, hidden.shape[-1]), ids.reshape(-1)
    results = over_chunks(chunk, rows, chunk_tokens, keep_last=keep_last)
    shaped = [result.view(ids.shape) for result in results]
    return shaped[0], shaped[1] if with_entropy else None


def check_chunking(temperature: float, chunk_tokens: int) -> None:
    """Raise `ValueError` for an invalid temperature or chunk size."""
    if not temperature > 0:
        raise ValueError(f"temperature={temperature}; must be positive: use 1.0")
    if chunk_tokens < 1:
        raise ValueError(f"chunk_tokens={chunk_tokens}; must be at least 1: use 1024, or fewer where memory is short")


def over_chunks(
    function: Callable[..., tuple[Tensor, ...]],
    rows: tuple[Tensor, ...],
    chunk_tokens: int,
    *,
    keep_last: bool = True,
) -> list[Tensor]:
    """Apply `function` to every `chunk_tokens` rows and join; under gradient, the backward pass recomputes each chunk,
    with `keep_last` except the last one.

    `rows` share their first dimension N; `function` maps chunks `[n, ...]` to a tuple of `[n]`; the results are `[N]`.
    """
    total = rows[0].shape[0]
    if total == 0:
        rows = tuple(torch.cat([part, part.new_zeros(1, *part.shape[1:])]) for part in rows)
    chunks = list(zip(*(part.split(chunk_tokens) for part in rows), strict=True))
    recomputed = len(chunks) - keep_last if torch.is_grad_enabled() else 0
    done = [
        checkpoint(function, *parts, use_reentrant=False, context_fn=lambda: (nullcontext(), _recomputation))
        for parts in chunks[:recomputed]
    ]
    done += [function(*parts) for parts in chunks[recomputed:]]
    return [torch.cat(results)[:total] for results in zip(*done, strict=True)]


def tempered_log_softmax(logits: Tensor, temperature: float) -> Tensor:
    """`log softmax(logits / temperature)` `[n, V]`, in float32 or better."""
    return torch.log_softmax(_temper(logits, temperature), dim=-1, dtype=_precision(logits))


def tempered_softmax(logits: Tensor, temperature: float) -> Tensor:
    """`softmax(logits / temperature)` `[n, V]`, in float32 or better."""
    return torch.softmax(_temper(logits, temperature), dim=-1, dtype=_precision(logits))


def _temper(logits: Tensor, temperature: float) -> Tensor:
    return logits if temperature == 1.0 else logits.to(_precision(logits), copy=True).div_(temperature)


def _precision(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)


class _SelectedLogprobs(torch.autograd.Function):
    """Chosen log-probabilities and entropies of logits `[n, V]`, with a backward pass of few temporaries.

    `d logprob / d z_j = [j = id] - p_j` and `d H / d z_j = -p_j (log p_j + H)`, over the tempered logits z. Only the
    logits are saved, in their own dtype; the backward pass computes probabilities from them.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor, temperature: float, with_entropy: bool) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits)
        if _recomputation.is_active:  # the results of the first pass are used
            empty = logits.new_empty(ids.shape, dtype=_precision(logits))
            return (empty, empty.clone()) if with_entropy else (empty,)
        every = tempered_log_softmax(logits, temperature)
        chosen = every.gather(-1, ids[:, None]).squeeze(-1)
        ctx.ids, ctx.temperature, ctx.entropy = ids, temperature, None
        if not with_entropy:
            return (chosen,)
        every.clamp_(min=LOG_ZERO)
        entropy = every.exp().mul_(every).sum(-1).neg_()
        ctx.entropy = entropy.detach()
        return chosen, entropy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_chosen: Tensor | None, grad_entropy: Tensor | None = None
    ) -> tuple[Any, ...]:
        (logits,) = ctx.saved_tensors
        if grad_chosen is None and grad_entropy is None:
            return None, None, None, None
        if grad_entropy is None:
            assert grad_chosen is not None
            scaled = grad_chosen / ctx.temperature
            grad = tempered_softmax(logits, ctx.temperature).mul_(-scaled[:, None])
        else:
            every = tempered_log_softmax(logits, ctx.temperature).clamp_(min=LOG_ZERO)
            slope = every + ctx.entropy[:, None]
            slope.mul_(grad_entropy[:, None] / -ctx.temperature)
            if grad_chosen is not None:
                scaled = grad_chosen / ctx.temperature
                slope.sub_(scaled[:, None])
            grad = every.exp_().mul_(slope)
        if grad_chosen is not None:
            grad.scatter_add_(-1, ctx.ids[:, None], scaled[:, None])
        return grad.to(logits.dtype), None, None, None
