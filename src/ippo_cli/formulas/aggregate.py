"""Loss aggregation: divides per-token losses by counts of the whole optimizer step; no other module divides losses."""

from __future__ import annotations

from torch import Tensor

from ippo_cli.formulas.masked import keep
from ippo_cli.formulas.shapes import Mask, Scalar, Tokens

AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")


def aggregate(
    loss: Tokens,
    mask: Mask,
    *,
    mode: str,
    num_tokens: int | Tensor,
    num_sequences: int | Tensor,
    norm: float | None = None,
) -> Scalar:
    """This part's share of the optimizer step's loss, a scalar; the shares of all parts sum to the loss.

    `loss` and `mask` are `[B, R]`; `num_tokens` (kept) and `num_sequences` (rows with a kept token) are counted over
    all ranks and micro-batches of the step, so the result does not depend on the split. By `mode`:

        token-mean                 sum of the kept losses / num_tokens
        seq-mean-token-sum         sum over rows of row sums / num_sequences
        seq-mean-token-mean        sum over rows of row means / num_sequences
        seq-mean-token-sum-norm    seq-mean-token-sum / norm, a constant such as the response budget

    Counts below 1 divide by 1, so an empty mask gives 0. `norm` is required in the last mode (the tensor's width in its
    place would make the loss depend on trimming) and ignored in the others.

    Source: DAPO (arXiv 2503.14476) for token-mean; GRPO (arXiv 2402.03300), eq. 3, for seq-mean-token-mean;
    Dr. GRPO (arXiv 2503.20783) for the constant norm.
    """
    if mode not in AGGREGATIONS:
        raise ValueError(f"mode={mode}; must be one of {' '.join(AGGREGATIONS)}")
    if mode != "seq-mean-token-sum-norm":
        norm = 1.0
    elif norm is None or not norm > 0:
        raise ValueError(f"norm={norm}; mode={mode} needs a positive constant: use the response budget in tokens")
    kept = keep(loss, mask)
    if mode == "token-mean":
        return kept.sum() / _clamp_to_one(num_tokens)
    if mode == "seq-mean-token-mean":
        kept = kept.sum(dim=-1) / mask.bool().sum(dim=-1).clamp(min=1)
    return kept.sum() / _clamp_to_one(num_sequences) / norm


def _clamp_to_one(count: int | Tensor) -> int | Tensor:
    return count.clamp(min=1) if isinstance(count, Tensor) else max(count, 1)
